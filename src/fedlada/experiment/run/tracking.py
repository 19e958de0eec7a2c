"""Trackers, which store the records of a run: always JSON lines, others on request."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

from ... import RoundRecord
from ...atomic import write
from ...errors import ExperimentError, missing_extra
from ...server.record import plain_record
from ...server.upgrade import upgraded_record
from ..config.experiment import Experiment
from .adapters import ADAPTERS, Tracker
from .directory import RunDirectory

__all__ = ["JsonLines", "Tracker", "parsed", "trackers"]


@contextmanager
def trackers(
    config: Experiment, directory: RunDirectory, resumed: RoundRecord | None
) -> Iterator[list[Tracker]]:
    """Open all trackers of a run that is new or resumes after the record ``resumed``."""
    with ExitStack() as stack:
        lines = JsonLines(directory.records_file, resumed)
        made: list[Tracker] = [stack.enter_context(closing(lines))]
        for name in config.track:
            try:
                adapter = ADAPTERS[name](config, directory.path, resumed.round if resumed else 1)
            except ModuleNotFoundError as error:
                raise missing_extra(error, f'track = ["{name}"]', name) from None
            made.append(stack.enter_context(closing(adapter)))
            if resumed is not None:
                adapter.record(resumed)  # the run may have been killed before this call
        yield made


class JsonLines:
    """Writes one line per round to disk before the next round begins.

    A killed run may have left an incomplete line, or lines of rounds after its last checkpoint;
    these are removed.  If the line of the checkpoint's round is missing, it is added.
    """

    def __init__(self, path: Path, resumed: RoundRecord | None) -> None:
        last = 0 if resumed is None else resumed.round
        text = path.read_text() if path.exists() else ""
        lines = [line for line in text.splitlines(keepends=True) if line.endswith("\n")][:last]
        if resumed is not None and len(lines) == last - 1:
            lines.append(_line(resumed))
        rounds = [json.loads(line)["round"] for line in lines]
        if rounds != list(range(1, last + 1)):
            raise ExperimentError(
                f"{path} does not hold rounds 1 to {last} in order, though the checkpoint beside it"
                " is of that round; restore the file, or delete the run's directory to start again."
            )
        write(path, "".join(lines).encode())
        self._file = path.open("a")

    def record(self, record: RoundRecord) -> None:
        self._file.write(_line(record))
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()


def parsed(line: bytes | str) -> RoundRecord:
    """Return the record of a line."""
    found = upgraded_record(json.loads(line))
    for key in ("metrics", "client_metrics", "spread"):
        found[key] = {n: math.nan if v is None else v for n, v in found[key].items()}
    return RoundRecord(**{**found, "cohort": tuple(found["cohort"])})


def _line(record: RoundRecord) -> str:
    return json.dumps(plain_record(record), allow_nan=False) + "\n"
