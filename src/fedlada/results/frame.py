"""``fedlada.frame``: the records of runs as one table, for notebooks."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..algorithms import ALGORITHMS, Algorithm
from ..errors import ExperimentError, missing_extra
from ..server.record import RoundRecord
from ..simulation import Simulation

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
        from ..experiment.config.keys import flatten
        from ..experiment.results.frames import frame as of_directories, numbers, with_totals
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("fedlada"):
            raise
        raise missing_extra(error, "fedlada.frame", "fedlada[experiment]") from None
    several = [runs] if isinstance(runs, str | Path | Simulation) else runs
    names = list(map(str, several)) if isinstance(several, Mapping) else None
    inside = several.values() if isinstance(several, Mapping) else several
    every: list[Any] = list(inside) if isinstance(inside, Iterable) else []
    if every and all(isinstance(run, str | Path) for run in every):
        return of_directories([Path(run) for run in every], rounds=rounds)
    named: list[tuple[str, Sequence[RoundRecord], Simulation[Any] | None]]
    if every and all(isinstance(run, Simulation) for run in every):
        labels = names or [str(number) for number in range(len(every))]
        named = [(name, run.records, run) for name, run in zip(labels, every, strict=True)]
    elif every and all(isinstance(record, RoundRecord) for record in every):
        named = [("0", every, None)]
    else:
        raise ExperimentError(
            f"runs are {runs!r:.100}; give a directory, a Simulation, several of them as a list or"
            " by name, or a list of records."
        )
    lines = []
    for name, records, run in named:
        algorithm = None if run is None else _algorithm_name(run.plan.algorithm)
        for record in records:
            columns = numbers(flatten(dataclasses.asdict(record)))
            score = None if run is None or run.score is None else columns.get(run.score)
            lines.append({"run": name, "algorithm": algorithm, **columns, "score": score})
    if not lines:
        raise ExperimentError("No round has been run; iterate over the Simulation, or call run().")
    return with_totals(lines, of="run", rounds=rounds)


def _algorithm_name(algorithm: Algorithm) -> str:
    """Return the name of an algorithm, whatever its settings, or of its parts if it has none."""
    shape = {"local", "corrections", "server"}
    own = {key: value for key, value in algorithm.spec().items() if key in shape}
    for name, known in ALGORITHMS.items():
        if own == {key: known.spec()[key] for key in own}:
            return name
    return "-".join([*own["corrections"], own["local"], own["server"]])
