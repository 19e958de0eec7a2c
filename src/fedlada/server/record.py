"""What happened in one round, and how long it took."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

__all__ = ["Clock", "RoundRecord"]

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
    """Bytes of vectors sent to the clients that were reached."""
    bytes_up: int
    """Bytes of vectors in the replies that came, rejected ones included."""
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
    """Replies that were rejected, counted by reason."""
    limited: Mapping[str, int] = field(default_factory=dict)
    """Accepted replies of which something was brought down to a limit, counted by what."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Means of what the clients reported, and what ``evaluate`` found."""
    spread: Mapping[str, float] = field(default_factory=dict)
    """Standard deviations over the clients of what they reported."""


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
        """Return the seconds since the start, and those of them not spent waiting."""
        seconds = time.perf_counter() - self._began
        return seconds, seconds - self._waited
