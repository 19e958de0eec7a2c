"""What crosses between server and clients in one round."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..algorithms import Vectors
from .codecs import Codecs
from .seeds import seed_of
from .wire import Parcel, send

__all__ = ["Failure", "Rejection", "Reply", "Task", "reply_parcel"]


@dataclass(frozen=True, kw_only=True)
class Task:
    """What the server sends to every client of a cohort."""

    round: int
    """Counted from 0."""
    seed: int
    lr: float
    vectors: Vectors
    """The ``down`` vectors, x among them, as the clients see them after decoding."""
    parcel: Parcel | None = None
    """The same vectors on the wire; None where nobody counts bytes."""
    codecs: Codecs = field(default_factory=Codecs)
    """How vectors travel, both ways."""
    nonce: str = ""
    """A token that nobody can guess; a reply that does not repeat it answers another task."""
    run: str = ""
    """The name of the run, the same before and after it is resumed."""
    last_accepted: Mapping[int, int] = field(default_factory=dict)
    """The round of the last accepted reply of each client that keeps vectors, if any."""
    resumable_from: int = 0
    """The earliest round from which this run may be resumed: what clients keep must reach back
    to it."""

    @property
    def nbytes(self) -> int:
        """How many bytes one client receives."""
        return self.vectors.nbytes() if self.parcel is None else self.parcel.nbytes


@dataclass(frozen=True, kw_only=True)
class Reply:
    """What one client sends back."""

    client: int
    round: int
    vectors: Vectors
    """The ``up`` vectors, delta among them."""
    examples: int
    steps: int
    lr_sum: float
    """The sum of the learning rates of its steps."""
    nonce: str = ""
    seconds: float = 0.0
    """What training took, by the client's own clock."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    received: int | None = None
    """How many bytes its vectors took on the wire; None where they were not encoded."""

    @property
    def nbytes(self) -> int:
        """How many bytes the server received."""
        return self.vectors.nbytes() if self.received is None else self.received


@dataclass(frozen=True, kw_only=True)
class Failure:
    """A client of the cohort that gives no usable reply, and why, in a few words."""

    client: int
    reason: str
    reached: bool = True
    """Whether the task was sent to it."""


@dataclass(frozen=True, kw_only=True)
class Rejection(Failure):
    """A reply that came and was rejected, and why."""

    nbytes: int = 0
    """How many bytes of vectors it had."""


def reply_parcel(reply: Reply, task: Task) -> Parcel:
    """Put a client's vectors on the wire."""
    seed = seed_of(task.seed, "up", task.round, reply.client)
    return send(reply.vectors, task.codecs, "up", seed=seed)
