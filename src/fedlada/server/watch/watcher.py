"""The interface of a watcher, and the choice of watchers for a run."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Protocol, runtime_checkable

from ...errors import require, require_known
from ..record import RoundRecord

__all__ = ["LOG_FORMAT", "METRICS", "Callback", "Watcher", "watchers", "watching"]

LOG_FORMAT, METRICS = "FEDLADA_LOG_FORMAT", "FEDLADA_METRICS"
"""The environment variables that choose watchers if no setting does."""
FORMATS = ("text", "json")


Callback = Callable[[RoundRecord], object]
"""Is called with the record of every round, once it is saved."""


@runtime_checkable
class Watcher(Protocol):
    """Is called when a run begins, after every round, and when it ends."""

    def begin(
        self, run: str, *, round: int, rounds: int, resumed: RoundRecord | None = None
    ) -> None:
        """Note that a run begins, or continues after ``round`` of its ``rounds``.

        ``resumed`` is the record of that round if the run resumes from a checkpoint.  The watcher
        may have it already: the run may have been killed before or after it was passed on.
        """
        ...

    def record(self, record: RoundRecord, *, saved: bool) -> None:
        """Note a round, and whether a checkpoint of it was written."""
        ...

    def close(self) -> None:
        """End watching; no record follows."""
        ...


class _Calling:
    """A watcher that calls a function with each record, and with nothing else."""

    def __init__(self, function: Callback) -> None:
        self._function = function

    def begin(
        self, run: str, *, round: int, rounds: int, resumed: RoundRecord | None = None
    ) -> None:
        pass

    def record(self, record: RoundRecord, *, saved: bool) -> None:
        self._function(record)

    def close(self) -> None:
        pass


def watching(callback: Callback | Watcher) -> Watcher:
    """Return a watcher that calls a function with each record; a watcher is returned as it is."""
    require(
        not isinstance(callback, type) and (isinstance(callback, Watcher) or callable(callback)),
        f"a callback is {callback!r:.100}; give a function of a record, or a tracker such as"
        ' fedlada.results.tracking.TensorBoard("runs/mine")',
    )
    return callback if isinstance(callback, Watcher) else _Calling(callback)


def watchers(log_format: str = "", metrics: str | int = "") -> list[Watcher]:
    """Return the watchers that the settings choose, or the environment if a setting is empty.

    Args:
        log_format: ``json`` for one JSON object per event on standard error; ``text`` for none.
        metrics: Where to serve metrics for Prometheus: a port of 127.0.0.1, or ``address:port``.
    """
    log_format = log_format or os.environ.get(LOG_FORMAT, "") or "text"
    require_known(log_format, FORMATS, f"log-format is {log_format!r}")
    where = str(metrics or os.environ.get(METRICS, ""))
    chosen: list[Watcher] = []
    if where:
        from .metrics import Metrics

        chosen.append(Metrics(where))
    if log_format == "json":
        from .logs import JsonLog

        chosen.append(JsonLog())
    return chosen
