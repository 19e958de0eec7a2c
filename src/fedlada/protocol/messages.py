"""The messages between server and clients in one round."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..algorithms import Vectors
from ..errors import FedladaError, require
from .codecs import Codecs
from .seeds import seed_of
from .wire import Parcel, send

__all__ = [
    "LONGEST_NAME",
    "MOST_METRICS",
    "Answer",
    "Assessment",
    "Clips",
    "Failure",
    "Rejection",
    "Reply",
    "Task",
    "as_numbers",
    "reply_parcel",
    "well_named",
]

LONGEST_NAME = 100
"""Largest number of characters in the name of a metric or a vector."""
MOST_METRICS = 100
"""Largest number of metrics in a reply, and of clients' metrics in the record of a round."""


@dataclass(frozen=True, kw_only=True)
class Clips:
    """What a private run asks of its clients: their news alone, no longer than this."""

    steps: int
    """The number of local steps that the server assumes of every client."""
    lengths: Mapping[str, float]
    """The greatest length of the news of each ``up`` vector."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """The message that the server sends to every client of a cohort."""

    round: int
    """Counted from 0."""
    seed: int
    """The seed of the run, from which all random numbers of the round follow."""
    lr: float
    """The learning rate of the round."""
    vectors: Vectors
    """The ``down`` vectors, including x, as the clients see them after decoding."""
    parcel: Parcel | None = None
    """The same vectors, encoded for sending; None if bytes are not counted."""
    codecs: Codecs = field(default_factory=Codecs)
    """How vectors are encoded in both directions."""
    nonce: str = ""
    """A token that cannot be guessed; a reply must repeat it to count as an answer to this task."""
    run: str = ""
    """The name of the run, the same before and after it is resumed."""
    last_accepted: Mapping[int, int] = field(default_factory=dict)
    """The round of the last accepted reply of each client that keeps vectors, if any."""
    resumable_from: int = 0
    """The earliest round from which this run may be resumed: clients keep the vectors that this
    needs."""
    clips: Clips | None = None
    """The clips of a private run; None in any other."""
    sealed: Mapping[int, bytes] | None = None
    """What the masks of each client need of others; None if replies come without masks."""

    @property
    def nbytes(self) -> int:
        """Number of bytes that one client receives."""
        return self.vectors.nbytes() if self.parcel is None else self.parcel.nbytes


@dataclass(frozen=True, kw_only=True)
class Reply:
    """The message that one client sends back."""

    client: int
    """The number of the client."""
    round: int
    """The round of the task, counted from 0."""
    vectors: Vectors
    """The ``up`` vectors, including delta."""
    examples: int
    """Number of examples that the client trained on."""
    steps: int
    """Number of steps that it took."""
    lr_sum: float
    """The sum of the learning rates of the client's steps."""
    nonce: str = ""
    """The word of the task that it answers."""
    seconds: float = 0.0
    """Training time in seconds, by the client's own clock."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """What the training loop returned."""
    received: int | None = None
    """Number of bytes of its vectors as sent; None if they were not encoded."""

    @property
    def nbytes(self) -> int:
        """Number of bytes that the server received."""
        return self.vectors.nbytes() if self.received is None else self.received


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a client says about the masks of a round."""

    client: int
    message: bytes


@dataclass(frozen=True, kw_only=True)
class Assessment:
    """A client's evaluation of the server's model on its own data."""

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
    """The number of the client."""
    reason: str
    """Why it sent nothing."""
    reached: bool = True
    """Whether the task was sent to the client."""
    cause: str = ""
    """What the client itself says about it, for the log."""


@dataclass(frozen=True, kw_only=True)
class Rejection(Failure):
    """A reply that arrived and was rejected, and a short reason."""

    nbytes: int = 0
    """Number of bytes of its vectors."""


def well_named(name: object) -> bool:
    """Return whether a metric may have this name: short, and printable on one line."""
    return isinstance(name, str) and len(name) <= LONGEST_NAME and name.isprintable()


def reply_parcel(reply: Reply, task: Task) -> Parcel:
    """Return a client's vectors encoded for sending."""
    seed = seed_of(task.seed, "up", task.round, reply.client)
    return send(reply.vectors, task.codecs, "up", seed=seed)


def as_numbers(metrics: object, source: str) -> dict[str, float]:
    """Return metrics as floats; errors name their ``source``."""
    if not isinstance(metrics, Mapping):
        raise FedladaError(
            f"{source} returned {metrics!r:.200}; it must return a dict of numbers by name, such"
            ' as {"loss": 0.5}, or {} for none'
        )
    numbers = {}
    for name, value in metrics.items():
        require(
            well_named(name),
            f"{source} returned a metric with the name {name!r:.200}; a name must have at most"
            f" {LONGEST_NAME} printable characters and no line break",
        )
        try:
            numbers[name] = float(value)
        except (TypeError, ValueError, RuntimeError) as error:
            raise FedladaError(
                f"{source} returned {value!r:.200} for the metric {name!r}; a metric must be one"
                " number, such as loss.item()"
            ) from error
    return numbers
