"""The records of a run in a file: one JSON object per line and round.

The lines of the rounds since the last checkpoint are on the disk before the manifest of the next
one.  A run that resumes cuts off the lines of later rounds, which it runs again, so no round is
lost and none is there twice.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Sequence
from pathlib import Path

from ...atomic import sync_names, write
from ...errors import FedladaError
from ..record import RoundRecord, plain_record, record_of

__all__ = ["History"]


class History:
    """The file of a run's records."""

    def __init__(self, file: Path, *, complete: bool = False) -> None:
        """Use a file; a ``complete`` one has every round from the first."""
        self.file, self._complete = file, complete

    def read(self) -> list[RoundRecord]:
        """Return the records of all complete lines; none if there is no file."""
        return [record_of(json.loads(line)) for line in self._lines()]

    def append(self, records: Sequence[RoundRecord]) -> None:
        """Write records behind those that are there, and sync them to the disk."""
        new = not self.file.exists()
        with self.file.open("ab") as file:
            file.write("".join(map(_line, records)).encode())
            file.flush()
            os.fsync(file.fileno())
        if new:
            sync_names(self.file.parent)

    def resume(self, last: RoundRecord | None) -> list[RoundRecord]:
        """Cut the file to the rounds up to ``last``, that of the checkpoint, and return them.

        The line of ``last`` is added if it alone is missing.  Without a file the earlier rounds
        are unknown, as after a resume of version 0.3.0, which wrote none.
        """
        if last is None:
            write(self.file, b"")
            return []
        if not (self._complete or self.file.exists()):
            warnings.warn(
                f"there is no {self.file}, so the records of the rounds up to {last.round} are"
                " unknown; the run resumes without them",
                stacklevel=2,
            )
            return []
        records = self._up_to(last)
        write(self.file, "".join(map(_line, records)).encode())
        return records

    def _up_to(self, last: RoundRecord) -> list[RoundRecord]:
        try:
            records = [record for record in self.read() if record.round <= last.round]
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise self._damaged(last.round) from error
        rounds = [record.round for record in records]
        first = rounds[0] if rounds and not self._complete else 1
        if rounds == list(range(first, last.round)):
            return [*records, last]
        if rounds != list(range(first, last.round + 1)):
            raise self._damaged(last.round)
        return records

    def _damaged(self, last: int) -> FedladaError:
        cure = "start a new run in another directory"
        if not self._complete:
            cure = "delete it, and the run resumes without the records of earlier rounds"
        return FedladaError(
            f"{self.file} does not hold rounds 1 to {last} in order, though there is a checkpoint"
            f" of round {last}; restore the file, or {cure}"
        )

    def _lines(self) -> list[bytes]:
        content = self.file.read_bytes() if self.file.exists() else b""
        return content.rpartition(b"\n")[0].splitlines()


def _line(record: RoundRecord) -> str:
    return json.dumps(plain_record(record), allow_nan=False) + "\n"
