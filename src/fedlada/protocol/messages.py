"""The messages between server and clients in one round."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..algorithms import Vectors
from .codecs import Codecs
from .seeds import seed_of
from .wire import Parcel, send

__all__ = [
    "LONGEST_NAME",
    "Assessment",
    "Failure",
    "Rejection",
    "Reply",
    "Task",
    "reply_parcel",
    "well_named",
]

LONGEST_NAME = 100
"""Largest number of characters in the name of a metric."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """The message that the server sends to every client of a cohort."""

    round: int
    """Counted from 0."""
    seed: int
    lr: float
    vectors: Vectors
    """The ``down`` vectors, including x, as the clients see them after decoding."""
    parcel: Parcel | None = None
    """The same vectors, encoded for sending; None where bytes are not counted."""
    codecs: Codecs = field(default_factory=Codecs)
    """How vectors are encoded in both directions."""
    nonce: str = ""
    """A token that cannot be guessed; a reply without it answers another task."""
    run: str = ""
    """The name of the run, the same before and after it is resumed."""
    last_accepted: Mapping[int, int] = field(default_factory=dict)
    """The round of the last accepted reply of each client that keeps vectors, if any."""
    resumable_from: int = 0
    """The earliest round from which this run may be resumed: clients must keep the vectors that
    this needs."""

    @property
    def nbytes(self) -> int:
        """Number of bytes that one client receives."""
        return self.vectors.nbytes() if self.parcel is None else self.parcel.nbytes


@dataclass(frozen=True, kw_only=True)
class Reply:
    """The message that one client sends back."""

    client: int
    round: int
    vectors: Vectors
    """The ``up`` vectors, including delta."""
    examples: int
    steps: int
    lr_sum: float
    """The sum of the learning rates of the client's steps."""
    nonce: str = ""
    seconds: float = 0.0
    """Training time in seconds, by the client's own clock."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    received: int | None = None
    """Number of bytes of its vectors as sent; None if they were not encoded."""

    @property
    def nbytes(self) -> int:
        """Number of bytes that the server received."""
        return self.vectors.nbytes() if self.received is None else self.received


@dataclass(frozen=True, kw_only=True)
class Assessment:
    """The message of one client that has evaluated the server's model on its own data."""

    client: int
    round: int
    examples: int
    """Number of examples evaluated on."""
    metrics: Mapping[str, float]
    nonce: str = ""


@dataclass(frozen=True, kw_only=True)
class Failure:
    """A client of the cohort without a usable reply, and a short reason."""

    client: int
    reason: str
    reached: bool = True
    """Whether the task was sent to the client."""


@dataclass(frozen=True, kw_only=True)
class Rejection(Failure):
    """A reply that arrived and was rejected, and a short reason."""

    nbytes: int = 0
    """Number of bytes of its vectors."""


def well_named(name: object) -> bool:
    """Return whether a metric may have this name: it is printed, so it must stay on its line."""
    return isinstance(name, str) and len(name) <= LONGEST_NAME and name.isprintable()


def reply_parcel(reply: Reply, task: Task) -> Parcel:
    """Return a client's vectors encoded for sending."""
    seed = seed_of(task.seed, "up", task.round, reply.client)
    return send(reply.vectors, task.codecs, "up", seed=seed)
