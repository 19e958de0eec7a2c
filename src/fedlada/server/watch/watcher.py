"""The interface of a watcher, and the choice of watchers for a run."""

from __future__ import annotations

import os
from typing import Protocol

from ...errors import nearest, require
from ..record import RoundRecord

__all__ = ["LOG_FORMAT", "METRICS", "Watcher", "watchers"]

LOG_FORMAT, METRICS = "FEDLADA_LOG_FORMAT", "FEDLADA_METRICS"
"""The environment variables that choose watchers if no setting does."""
FORMATS = ("text", "json")


class Watcher(Protocol):
    """Is called when a run begins, after every round, and when it ends."""

    def begin(self, run: str, *, round: int, rounds: int) -> None:
        """Note that a run begins, or continues after ``round`` of its ``rounds``."""
        ...

    def record(self, record: RoundRecord, *, saved: bool) -> None:
        """Note a round, and whether a checkpoint of it was written."""
        ...

    def close(self) -> None:
        """End watching; no record follows."""
        ...


def watchers(log_format: str = "", metrics: str | int = "") -> list[Watcher]:
    """Return the watchers that the settings choose, or the environment if a setting is empty.

    Args:
        log_format: ``json`` for one JSON object per event on standard error; ``text`` for none.
        metrics: Where to serve metrics for Prometheus: a port of 127.0.0.1, or ``address:port``.
    """
    log_format = log_format or os.environ.get(LOG_FORMAT, "") or "text"
    require(log_format in FORMATS, f"log-format is {log_format!r}; {nearest(log_format, FORMATS)}")
    where = str(metrics or os.environ.get(METRICS, ""))
    chosen: list[Watcher] = []
    if where:
        from .metrics import Metrics

        chosen.append(Metrics(where))
    if log_format == "json":
        from .logs import JsonLog

        chosen.append(JsonLog())
    return chosen
