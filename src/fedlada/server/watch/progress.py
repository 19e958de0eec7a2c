"""How far a run is: a line for every round, how fast rounds pass, and how long the rest takes."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterable, Iterator
from typing import TextIO

from ..record import RoundRecord

__all__ = ["Pace", "progress", "shown"]

CLEARED = "\r\x1b[K"
"""What a terminal takes to begin its last line again."""


class Pace:
    """Measures how fast rounds pass, from now on."""

    def __init__(self, done: int) -> None:
        """Begin after ``done`` rounds, which others have run."""
        self._began, self._first = time.monotonic(), done

    def rate(self, done: int) -> float:
        """Return the rounds per second; 0 before the first round."""
        return (done - self._first) / max(1e-9, time.monotonic() - self._began)

    def left(self, done: int, rounds: int) -> float:
        """Return the seconds that the rest of the rounds takes; 0 before the first round."""
        rate = self.rate(done)
        return (rounds - done) / rate if rate else 0.0


def shown(
    records: Iterable[RoundRecord], terminal: TextIO, *, done: int, rounds: int
) -> Iterator[RoundRecord]:
    """Yield the records and show the newest on the last line of a terminal."""
    pace, written = Pace(done), False
    try:
        for record in records:
            text = progress(record, rounds, pace.left(record.round, rounds))
            terminal.write(CLEARED + text[: shutil.get_terminal_size().columns - 1])
            terminal.flush()
            written = True
            yield record
    finally:
        if written:
            terminal.write("\n")


def progress(record: RoundRecord, rounds: int, left: float) -> str:
    """Return a line: ``round 3/20: 9 of 9 replies, clients' loss 1.2, 8.1 s; about 2 min left``."""
    parts = [f"{record.accepted} of {len(record.cohort)} replies"]
    if record.epsilon is not None:  # nobody may know how many took part
        kind = "seeded, so not private" if record.seeded else f"delta {record.delta:g}"
        parts = [f"epsilon {record.epsilon:.3g} ({kind})"]
    parts += [f"{count} {reason}" for reason, count in record.failures.items()]
    parts += [f"{count} rejected ({reason})" for reason, count in record.rejected.items()]
    parts += [f"{count} limited ({what})" for what, count in record.limited.items()]
    parts += [] if record.applied else ["round abandoned"]
    parts += [f"clients' {name} {value:.4g}" for name, value in record.client_metrics.items()]
    parts += _told_by_clients(record)
    parts += [f"{name} {value:.4g}" for name, value in record.metrics.items()]
    then = f"about {left / 60:.0f} min left" if left > 90 else f"about {left:.0f} s left"
    return f"round {record.round}/{rounds}: {', '.join(parts)}, {record.seconds:.1f} s; {then}"


def _told_by_clients(record: RoundRecord) -> list[str]:
    """Return the clients' evaluation: ``evaluated by 9 (accuracy 0.9, median 0.92)``."""
    if not record.evaluated_by and not record.evaluation_failures:
        return []
    parts = [
        f"{name} {value:.4g}, median {record.evaluation_median[name]:.4g}"
        for name, value in record.evaluation.items()
    ]
    parts += [f"{count} {reason}" for reason, count in record.evaluation_failures.items()]
    return [f"evaluated by {record.evaluated_by} ({'; '.join(parts)})"]
