"""``fedlada.frame``: the records of runs as one table, for notebooks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .errors import missing_extra
from .server.record import RoundRecord
from .simulation import Simulation

if TYPE_CHECKING:
    import polars as pl

__all__ = ["frame"]

Run = str | Path | Simulation[Any]
Runs = Run | Mapping[str, Simulation[Any]] | Iterable[Run | RoundRecord]


def frame(runs: Runs, *, rounds: int | None = None) -> pl.DataFrame:
    """Return one row per run and round as a polars data frame.

    ``runs`` is a directory of a run or of a sweep, a :class:`Simulation`, a list of either,
    simulations by name, or a list of records.  With ``rounds``, later rounds are left out.

    The columns are those of a record, with metrics under their own names and those of clients
    under ``client_`` and that name, and ``run``, ``algorithm``, ``score``, ``total_bytes`` and
    ``total_seconds``.  The runs of directories have more: ``title``, ``variant`` and the keys of
    their files in which they differ.
    """
    try:
        from .experiment.results.frames import frame_of
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("fedlada"):
            raise
        raise missing_extra(error, "fedlada.frame", "fedlada[experiment]") from None
    return frame_of(runs, rounds=rounds)
