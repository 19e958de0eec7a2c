"""What crosses between server and clients in one round."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from .algorithms import Vectors

__all__ = ["Engine", "Failure", "Reply", "Task"]


@dataclass(frozen=True, kw_only=True)
class Task:
    """What the server sends to every client of a cohort."""

    round: int
    """Counted from 0."""
    seed: int
    lr: float
    vectors: Vectors
    """The ``down`` vectors, x among them."""


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
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Failure:
    """A client of the cohort that gives no usable reply, and why, in a few words."""

    client: int
    reason: str


class Engine(Protocol):
    """The seam between the server loop and whatever runs the clients."""

    clients: int
    """How many clients are registered; they are numbered from 0."""

    def exchange(self, task: Task, cohort: Sequence[int]) -> Iterator[Reply | Failure]:
        """Send the task to the cohort and give replies as they come, in any order.

        The server loop may stop asking before all have replied.
        """
        ...

    def commit(self, round: int, clients: Sequence[int]) -> None:
        """The replies of these clients were accepted: what they keep becomes theirs."""
        ...
