"""``fedlada.frame``: the records of runs as one table, for notebooks."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

from ..algorithms import ALGORITHMS
from ..errors import ExperimentError, missing_extra, require
from ..server.record import RoundRecord
from ..server.saving.checkpoint import Checkpoints
from .recorded import Recorded

if TYPE_CHECKING:
    import polars as pl

__all__ = ["frame"]

Run = str | Path | Checkpoints | Recorded
Runs = Run | Mapping[str, Run] | Iterable[Run | RoundRecord]


class _Named(NamedTuple):
    """A run, and what its rows begin with."""

    name: str
    records: Sequence[RoundRecord]
    algorithm: str | None = None
    score: str | None = None


By = Literal["round", "client"]


def frame(runs: Runs, *, rounds: int | None = None, by: By = "round") -> pl.DataFrame:
    """Return one row per run and round as a polars data frame.

    ``runs`` is a directory of a run, of a sweep or of checkpoints, a :class:`Simulation`, a list
    of these, these by name, or a list of records.  With ``rounds``, later rounds are left out.

    The columns are those of a record, with metrics under their own names and those of clients
    under ``client_`` and that name, and ``run``, ``algorithm``, ``score``, ``total_bytes`` and
    ``total_seconds``.  The runs of experiments have more: ``title``, ``variant`` and the keys of
    their files in which they differ.

    With ``by="client"`` there is one row for each client that evaluated the model after a round:
    its name or number as ``client``, and its metrics under their own names.
    """
    require(by in get_args(By), f"by is {by!r}; it must be one of {', '.join(get_args(By))}")
    try:
        from ..experiment.config.keys import flatten
        from ..experiment.results.frames import (
            by_client,
            by_client_in,
            client_frame,
            frame as of_directories,
            numbers,
            with_totals,
        )
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("fedlada"):
            raise
        raise missing_extra(error, "fedlada.frame", "fedlada[experiment]") from None
    several = [runs] if isinstance(runs, str | Path | Checkpoints | Recorded) else runs
    names = list(map(str, several)) if isinstance(several, Mapping) else None
    inside = several.values() if isinstance(several, Mapping) else several
    every: list[Any] = list(inside) if isinstance(inside, Iterable) else []
    every = [_checkpoints(run) or run for run in every]
    if every and all(isinstance(run, str | Path) for run in every):
        if by == "client":
            return by_client_in([Path(run) for run in every], rounds=rounds)
        return of_directories([Path(run) for run in every], rounds=rounds)
    if every and all(isinstance(record, RoundRecord) for record in every):
        named = [_Named("0", every)]
    elif every and all(isinstance(run, Checkpoints | Recorded) for run in every):
        labels = names or [str(number) for number in range(len(every))]
        named = [_named(name, run) for name, run in zip(labels, every, strict=True)]
    else:
        raise ExperimentError(
            f"runs are {runs!r:.100}; give a directory, a Simulation, several of them as a list or"
            " by name, or a list of records."
        )
    lines: list[dict[str, object]] = []
    for name, records, algorithm, score in named:
        about: dict[str, object] = {"run": name, "algorithm": algorithm}
        if by == "client":
            lines += by_client(about, map(dataclasses.asdict, records), rounds=rounds)
            continue
        for record in records:
            columns = numbers(flatten(dataclasses.asdict(record)))
            value = None if score is None else columns.get(score)
            lines.append({**about, **columns, "score": value})
    if by == "client":
        return client_frame(lines)
    if not lines:
        raise ExperimentError("No round has been run; iterate over the Simulation, or call run().")
    return with_totals(lines, of="run", rounds=rounds)


def _checkpoints(run: object) -> Checkpoints | None:
    """Return the checkpoints that a directory holds; None if it holds none."""
    if not isinstance(run, str | Path) or not Path(run).is_dir():
        return None
    checkpoints = Checkpoints(run)
    return checkpoints if checkpoints.rounds() else None


def _named(name: str, run: Checkpoints | Recorded) -> _Named:
    if isinstance(run, Checkpoints):
        spec: Any = run.config().get("algorithm")
        return _Named(name, run.records(), None if spec is None else _algorithm_name(spec))
    return _Named(name, run.records, _algorithm_name(run.plan.algorithm.spec()), run.score)


def _algorithm_name(spec: Mapping[str, Any]) -> str:
    """Return the name of an algorithm, whatever its settings, or of its parts if it has none."""
    shape = {"local", "corrections", "server"}
    own = {key: value for key, value in spec.items() if key in shape}
    for name, known in ALGORITHMS.items():
        if own == {key: known.spec()[key] for key in own}:
            return name
    return "-".join([*own["corrections"], own["local"], own["server"]])
