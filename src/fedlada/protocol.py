"""What crosses between server and clients in one round."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from .algorithms import Vectors

__all__ = ["Engine", "Failure", "Rejection", "Reply", "Task"]


@dataclass(frozen=True, kw_only=True)
class Task:
    """What the server sends to every client of a cohort."""

    round: int
    """Counted from 0."""
    seed: int
    lr: float
    vectors: Vectors
    """The ``down`` vectors, x among them."""
    nonce: str = ""
    """Nobody can guess it, and every reply repeats it: one that does not is to another task."""
    run: str = ""
    """The name of the run, the same before and after it is resumed."""
    last: Mapping[int, int] = field(default_factory=dict)
    """The round of the last accepted reply of each client that keeps vectors, if there was one."""
    epoch: int = 0
    """The earliest round from which this run may be resumed: what clients keep must reach back
    to it."""


@dataclass(frozen=True, kw_only=True)
class Reply:
    """What one client sends back."""

    client: int
    round: int
    vectors: Vectors
    """The ``up`` vectors, delta among them."""
    examples: int
    steps: int
    lr_steps: float
    """The sum of the learning rates of its steps."""
    nonce: str = ""
    seconds: float = 0.0
    """What training took, by the client's own clock."""
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Failure:
    """A client of the cohort that gives no usable reply, and why, in a few words."""

    client: int
    reason: str


@dataclass(frozen=True, kw_only=True)
class Rejection(Failure):
    """A reply that came and was turned away, and why."""


class Engine(Protocol):
    """The seam between the server loop and whatever runs the clients."""

    clients: int
    """How many clients are registered; they are numbered from 0."""
    keeps: bool
    """Whether clients keep vectors between rounds."""

    def exchange(self, task: Task, cohort: Sequence[int]) -> Iterator[Reply | Failure]:
        """Send the task to the cohort and give replies as they come, in any order.

        The server loop may stop asking before all have replied.
        """
        ...

    def commit(self, task: Task, clients: Sequence[int]) -> None:
        """The replies of these clients were accepted, and that is on record.

        What they staged is theirs now; each is told so again with its next task.
        """
        ...
