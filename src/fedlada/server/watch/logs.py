"""Logs a run as JSON lines: one object per event, with the standard library's logging."""

from __future__ import annotations

import datetime
import json
import logging
from typing import TextIO

from ..record import RoundRecord, plain_record

__all__ = ["JsonFormatter", "JsonLog"]

LOGGER = "fedlada.run"


class JsonFormatter(logging.Formatter):
    """Writes a log record as one JSON object: time, level, event, and the event's own values."""

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.datetime.fromtimestamp(record.created, datetime.UTC)
        fixed = {
            "time": time.isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
        }
        return json.dumps(fixed | getattr(record, "values", {}), allow_nan=False)


class JsonLog:
    """Logs the beginning of a run, every round and the end.

    A round that changed nothing, or in which a reply was rejected, is logged as a warning.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        """Write to ``stream``; by default to standard error."""
        self._handler = logging.StreamHandler(stream)
        self._handler.setFormatter(JsonFormatter())
        # A logger of this run only: other handlers and parent loggers do not get its lines.
        self._logger = logging.Logger(LOGGER)
        self._logger.addHandler(self._handler)
        self._common: dict[str, object] = {}
        self._round = 0

    def begin(
        self, run: str, *, round: int, rounds: int, resumed: RoundRecord | None = None
    ) -> None:
        self._common, self._round = {"run": run, "rounds": rounds}, round
        self._log("resume" if round else "begin", {"round": round})

    def record(self, record: RoundRecord, *, saved: bool) -> None:
        self._round = record.round
        level = logging.WARNING if record.rejected or not record.applied else logging.INFO
        values = plain_record(record)
        values["simulated_time"] = values.pop("time")  # a line has its own time
        self._log("round", values | {"checkpoint": saved}, level)

    def close(self) -> None:
        self._log("end", {"round": self._round})
        self._logger.removeHandler(self._handler)
        self._handler.close()

    def _log(self, event: str, values: dict[str, object], level: int = logging.INFO) -> None:
        self._logger.log(level, event, extra={"values": self._common | values})
