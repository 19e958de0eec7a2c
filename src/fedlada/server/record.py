"""The record of one round, and the clock that times it."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from ..protocol.messages import MOST_METRICS

__all__ = [
    "MOST_CLIENTS",
    "Clock",
    "RoundRecord",
    "names_on_record",
    "plain_record",
    "record_of",
]

MOST_CLIENTS = 1000
"""Largest number of clients that a record names."""
NAMES_PER_RUN = 1000
"""Largest number of names of clients' metrics in all records of a run."""

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class RoundRecord:
    """What happened in one round: counts, bytes, times and metrics."""

    round: int
    """Number of rounds done, including this one; the first round is 1."""
    lr: float
    """The learning rate of the clients."""
    cohort: tuple[int, ...]
    """The numbers of the clients that were asked."""
    accepted: int
    """Number of accepted replies."""
    applied: bool
    """Whether the model changed, that is, enough replies were accepted."""
    steps: float
    """Mean number of local steps."""
    bytes_down: int
    """Bytes of vectors sent to the clients that were reached."""
    bytes_up: int
    """Bytes of vectors in the replies that arrived, including rejected ones."""
    time: float | None = None
    """Simulated seconds from the start of the run to the end of this round; None in real time."""
    seconds: float
    """Duration of the round in seconds, without evaluation and checkpoint."""
    local_seconds: float
    """Sum of the accepted clients' training times in seconds, by their own clocks."""
    server_seconds: float
    """The part of ``seconds`` in which the server did not wait for replies."""
    members: tuple[tuple[int, int], ...] = ()
    """Where replies may be late: each client whose reply was judged in this round, with the number
    of rounds done when it was sent its task.  From these a run can be replayed."""
    age: float | None = None
    """Where replies may be late: the mean number of rounds by which the accepted ones were."""
    oldest: int | None = None
    """The largest number of rounds by which an accepted reply was late."""
    drift: float | None = None
    """Mean of ||delta_i - mean delta||² over the accepted clients; None if they may be late."""
    consistency: float | None = None
    """Mean of ||y_i - x||² over the same clients, with x the new model, as in the paper."""
    failures: Mapping[str, int] = field(default_factory=dict)
    """Clients that sent no reply, counted by reason."""
    missing: Mapping[str, int] = field(default_factory=dict)
    """On Flower: the sites that sent nothing when they were last asked, and how often in a row."""
    rejected: Mapping[str, int] = field(default_factory=dict)
    """Replies that were rejected, counted by reason."""
    limited: Mapping[str, int] = field(default_factory=dict)
    """Accepted replies in which a quantity was reduced to its limit, counted by quantity."""
    incidents: Mapping[str, str] = field(default_factory=dict)
    """Why the replies of clients failed, were rejected or were limited, by the client's name or
    number; of 1000 clients at most."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """The results of ``evaluate``, on the server; clients cannot add to them."""
    client_metrics: Mapping[str, float] = field(default_factory=dict)
    """Means of the metrics that clients reported."""
    spread: Mapping[str, float] = field(default_factory=dict)
    """Standard deviations over the clients of the metrics that they reported."""
    evaluation: Mapping[str, float] = field(default_factory=dict)
    """Means of the metrics with which clients evaluated the new model on their own data."""
    evaluation_median: Mapping[str, float] = field(default_factory=dict)
    """Medians of the same metrics over the clients: fewer than half cannot move them far."""
    evaluation_worst: Mapping[str, float] = field(default_factory=dict)
    """Means of the same metrics over the tenth of the clients with the worst values: the highest
    of a loss or an error, the lowest of any other.  One liar can move them."""
    evaluation_clients: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """The same metrics of each client, by its name or number; empty if there are more than 1000."""
    evaluated_by: int = 0
    """Number of clients whose evaluation was accepted."""
    evaluation_failures: Mapping[str, int] = field(default_factory=dict)
    """Clients without a usable evaluation, and what was left out of others, by reason."""
    evaluation_bytes: int = 0
    """Bytes of vectors sent for the evaluation; ``bytes_down`` does not count them."""


def plain_record(record: RoundRecord) -> dict[str, object]:
    """Return the record for JSON, which has no NaN: null for numbers that are not finite."""
    return {name: _finite(value) for name, value in dataclasses.asdict(record).items()}


def _finite(value: object) -> object:
    if isinstance(value, dict):
        return {str(key): _finite(inner) for key, inner in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


def record_of(plain: Mapping[str, Any]) -> RoundRecord:
    """Return the record that JSON holds; a null in a table stands for a number that is not finite.

    Fields that this version does not know are left out.
    """
    values = {f.name: plain[f.name] for f in dataclasses.fields(RoundRecord) if f.name in plain}
    values = {name: _numbers(value) for name, value in values.items()}
    members = tuple(tuple(member) for member in plain.get("members", ()))
    return RoundRecord(**{**values, "cohort": tuple(plain["cohort"]), "members": members})


def _numbers(value: object) -> object:
    if isinstance(value, dict):
        return {key: math.nan if each is None else _numbers(each) for key, each in value.items()}
    return value


def names_on_record(known: list[str], reported: Mapping[str, int]) -> list[str]:
    """Return the names of the clients' metrics to record in a round: the most often reported.

    ``known`` has the names of earlier rounds, and new ones are added to it; ``reported`` has the
    number of clients that reported each.
    """
    names, earlier = list[str](), set(known)
    for name in sorted(reported, key=lambda name: (-reported[name], name)):
        if len(names) == MOST_METRICS:
            break
        if name not in earlier:
            if len(known) == NAMES_PER_RUN:
                continue
            known.append(name)
        names.append(name)
    return sorted(names)


class Clock:
    """Measures how long a round takes, and how much of that is waiting for replies."""

    def __init__(self) -> None:
        self._began, self._waited = time.perf_counter(), 0.0

    def waiting(self, replies: Iterable[T]) -> Iterator[T]:
        """Yield the replies unchanged and count the time spent waiting for each."""
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
        """Return the seconds since the start, and the part of them not spent waiting."""
        seconds = time.perf_counter() - self._began
        return seconds, seconds - self._waited
