"""What came of one round: replies are counted and folded as they arrive, then put on record."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from .admission import Admitted
from .aggregation import Mean
from .algorithms import Vector, Vectors
from .protocol import Failure, Rejection

__all__ = ["Aggregator", "Clock", "RoundRecord", "Tally"]

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class RoundRecord:
    """What happened in one round."""

    round: int
    """Counted from 1: after this record so many rounds are done."""
    lr: float
    cohort: tuple[int, ...]
    accepted: int
    applied: bool
    """Whether the model changed: enough replies were accepted."""
    steps: float
    """Mean number of local steps."""
    bytes_down: int
    bytes_up: int
    seconds: float
    """What the round took, evaluation and checkpoint not included."""
    local_seconds: float
    """The sum of what training took the accepted clients, by their own clocks."""
    server_seconds: float
    """What the server itself did in ``seconds``; the rest it waited for replies."""
    drift: float | None = None
    """Mean of ||delta_i - mean delta||² over the accepted clients."""
    consistency: float | None = None
    """Mean of ||y_i - x||² over them, with x the new model: the paper's consistency term."""
    failures: Mapping[str, int] = field(default_factory=dict)
    """Clients that sent no reply, counted by reason."""
    rejected: Mapping[str, int] = field(default_factory=dict)
    """Replies that were turned away, counted by reason."""
    limited: Mapping[str, int] = field(default_factory=dict)
    """Accepted replies of which something was brought down to a limit, counted by what."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Means of what the clients reported, and what ``evaluate`` found."""
    spread: Mapping[str, float] = field(default_factory=dict)
    """Standard deviations over the clients of what they reported."""


class Aggregator(Protocol):
    """Turns accepted replies into one: a mean, or something more robust."""

    count: int

    def fold(
        self, vectors: Vectors, *, weight: float = 1, scalars: Mapping[str, float] | None = None
    ) -> None:
        """Add one reply."""
        ...

    def vectors(self) -> Vectors:
        """What stands for all of them."""
        ...

    def scalars(self) -> dict[str, float]:
        """The same of their numbers."""
        ...


class Tally:
    """What has come of a round so far."""

    def __init__(self, total: Aggregator) -> None:
        self.total = total
        self.accepted: list[int] = []
        self.failures, self.rejected = Counter[str](), Counter[str]()
        self.limited = Counter[str]()
        self.bytes_up, self.local_seconds = 0, 0.0
        self._observed = Mean()

    def add(self, reply: Admitted | Failure) -> None:
        """Fold a reply, or count why there is none."""
        if isinstance(reply, Failure):
            counter = self.rejected if isinstance(reply, Rejection) else self.failures
            counter[reply.reason] += 1
            return
        content, weight = reply.reply, reply.weight
        scalars = {"steps": float(content.steps), "lr_steps": content.lr_steps}
        self.total.fold(content.vectors, weight=weight, scalars=scalars)
        observed = {f"metric:{name}": value for name, value in content.metrics.items()}
        observed |= {f"square:{name}": value * value for name, value in content.metrics.items()}
        observed["norm²"] = _square(content.vectors.delta.norm())
        self._observed.fold(Vectors(), weight=weight, scalars=observed)
        self.limited.update(reply.limited)
        self.bytes_up += content.vectors.nbytes()
        self.local_seconds += content.seconds
        self.accepted.append(content.client)

    def metrics(self) -> tuple[dict[str, float], dict[str, float]]:
        """Means and standard deviations over the clients of what they reported."""
        scalars = self._observed.scalars() if self.accepted else {}
        means = {n.removeprefix("metric:"): v for n, v in scalars.items() if n.startswith("metric")}
        squares = {name: scalars[f"square:{name}"] for name in means}
        spread = {n: math.sqrt(max(squares[n] - mean * mean, 0)) for n, mean in means.items()}
        return means, spread

    def distances(self, moved: Vector, mean: Vector) -> tuple[float, float]:
        """Drift and consistency, when the server moved by ``moved`` after a plain mean."""
        squares = self._observed.scalars()["norm²"]
        drift = squares - _square(mean.norm())
        # y_i - x' = moved - delta_i, and the mean of delta_i is known.
        consistency = squares - 2 * moved.dot(mean) + _square(moved.norm())
        return max(drift, 0.0), max(consistency, 0.0)


def _square(value: float) -> float:
    return value * value  # ** raises where this is infinite


class Clock:
    """How long a round takes, and how much of that is waiting for replies."""

    def __init__(self) -> None:
        self._began, self._waited = time.perf_counter(), 0.0

    def waiting(self, replies: Iterable[T]) -> Iterator[T]:
        """The same replies, and the time until each is there is waited."""
        iterator = iter(replies)
        while True:
            asked = time.perf_counter()
            try:
                reply = next(iterator)
            except StopIteration:
                return
            finally:
                self._waited += time.perf_counter() - asked
            yield reply

    def read(self) -> tuple[float, float]:
        """Seconds since the start, and those of them not spent waiting."""
        seconds = time.perf_counter() - self._began
        return seconds, seconds - self._waited
