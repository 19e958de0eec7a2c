"""The records of runs as one polars frame, and a summary with the cost of each target."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from ... import ALGORITHMS, Algorithm, RoundRecord, Simulation
from ...client.objective import Objective
from ...errors import ExperimentError
from ..config.experiment import FREE, Experiment
from ..config.keys import flatten
from ..run.directory import CLIENTS, RunDirectory, runs_in

__all__ = [
    *("SEEDS", "configurations", "frame", "frame_of", "judged", "measured", "summary", "varied"),
]

SEEDS = ("federation.seed", "data.seed")
LOOKED_AT = ("evaluate.train_sample",)
"""Settings that decide what is measured and change nothing in training."""
COSTS = {"rounds": "round", "bytes": "total_bytes", "seconds": "total_seconds"}
COUNTED = ("failures", "rejected", "limited")

Flat = dict[str, object]


def configurations(directories: Iterable[Path]) -> dict[Path, Experiment]:
    """Return the configuration of every run in the directories."""
    found = [run for directory in directories for run in runs_in(directory)]
    return {run: RunDirectory(run).config for run in found}


def frame_of(runs: object, *, rounds: int | None = None) -> pl.DataFrame:
    """Return the frame of what :func:`fedlada.frame` takes."""
    given = [runs] if isinstance(runs, str | Path | Simulation) else runs
    names = list(map(str, given)) if isinstance(given, Mapping) else None
    inside = given.values() if isinstance(given, Mapping) else given
    found: list[Any] = list(inside) if isinstance(inside, Iterable) else []
    if found and all(isinstance(run, str | Path) for run in found):
        return frame([Path(run) for run in found], rounds=rounds)
    if found and all(isinstance(run, Simulation) for run in found):
        labels = names or [str(number) for number in range(len(found))]
        named = [(name, run.records, run) for name, run in zip(labels, found, strict=True)]
    elif found and all(isinstance(record, RoundRecord) for record in found):
        named = [("0", found, None)]
    else:
        raise ExperimentError(
            f"runs are {runs!r:.100}; give a directory, a Simulation, several of them as a list or"
            " by name, or a list of records."
        )
    lines = [
        _about(run, simulation) | _numbers(flatten(dataclasses.asdict(record)))
        for run, records, simulation in named
        for record in records
    ]
    if not lines:
        raise ExperimentError("No round has been run; iterate over the Simulation, or call run().")
    for line in lines:
        score = line.pop("score_name")
        line["score"] = None if score is None else line.get(str(score))
    return _with_totals(lines, of="run", rounds=rounds)


def _about(run: str, simulation: Simulation[Any] | None) -> Flat:
    algorithm = None if simulation is None else _algorithm_name(simulation.plan.algorithm)
    score = None if simulation is None else simulation.score
    return {"run": run, "algorithm": algorithm, "score_name": score}


def _algorithm_name(algorithm: Algorithm) -> str:
    """Return the name of an algorithm, whatever its settings, or of its parts if it has none."""
    shape = {"local", "corrections", "server"}
    own = {key: value for key, value in algorithm.spec().items() if key in shape}
    for name, known in ALGORITHMS.items():
        if own == {key: known.spec()[key] for key in own}:
            return name
    return "-".join([*own["corrections"], own["local"], own["server"]])


def frame(directories: Iterable[Path], *, rounds: int | None = None) -> pl.DataFrame:
    """Return one row per run and round, in order, up to round ``rounds`` if that is given.

    Columns: the ``run`` and its ``directory``; the ``algorithm``, its ``title`` in tables, and
    ``variant``, which adds the settings in which runs of that title differ (except seeds); every
    dotted key in which configurations differ, and always lr and the seed; the ``split`` of the
    evaluation; the ``score``, also under its own name (``accuracy``, ``r2``), and ``measure``, its
    name in tables; whether it is better if ``higher``; the numbers of the record, with metrics
    under their own names and those that clients report under ``client_`` and that name; and the
    running totals ``total_bytes`` and ``total_seconds``.
    """
    configs = configurations(directories)
    flat = {run: flatten(config.model_dump(mode="json")) for run, config in configs.items()}
    titles = {run: config.title for run, config in configs.items()}
    inside = {
        title: varied([flat[run] for run in flat if titles[run] == title])
        for title in titles.values()
    }
    shared = [key for key in varied(list(flat.values())) if not key.startswith("settings.")]
    keys = dict.fromkeys(
        [*shared, SEEDS[0], "settings.lr", *(k for v in inside.values() for k in v)]
    )
    lines = []
    for run, config in configs.items():
        words = [f"{k.rpartition('.')[2]}={flat[run].get(k)}" for k in inside[titles[run]]]
        about = {
            "run": run.name,
            "directory": str(run),
            "algorithm": config.algorithm_name,
            "title": titles[run],
            "variant": " ".join([titles[run], *words]),
            "split": config.evaluate.split,
            **{key: _cell(flat[run].get(key)) for key in keys},
        }
        lines += [about | numbers for numbers in _records(run, config)]
    if not lines:
        raise ExperimentError("No run has finished a round yet; wait, or fedlada resume DIR.")
    return _with_totals(lines, of="directory", rounds=rounds)


def _with_totals(lines: Sequence[Flat], *, of: str, rounds: int | None) -> pl.DataFrame:
    """Return the lines as a frame with running totals of each run, up to a round."""
    both = pl.sum_horizontal("bytes_down", "bytes_up")
    found = pl.DataFrame(lines, infer_schema_length=None).with_columns(
        both.cum_sum().over(of).alias("total_bytes"),
        pl.col("seconds").cum_sum().over(of).alias("total_seconds"),
    )
    return found if rounds is None else found.filter(pl.col("round") <= rounds)


def varied(configs: Sequence[Flat]) -> list[str]:
    """Return the keys in which configurations differ, except those that name no variant."""
    keys = dict.fromkeys(key for config in configs for key in config)
    return [
        key
        for key in keys
        if key not in (*FREE, *SEEDS, *LOOKED_AT, "algorithm")
        and len({repr(config.get(key)) for config in configs}) > 1
    ]


def summary(data: pl.DataFrame, targets: Sequence[float] = (), *, last: int = 1) -> pl.DataFrame:
    """Return one row per run: final and best score, and the cost of each target or null.

    The final score is the mean of the ``last`` evaluations, since single rounds are noisy.

    ``applied`` is the number of rounds in which the model changed; failed, rejected and limited
    replies are counted over all rounds.
    A target is reached at the first evaluated round whose score is as good. Its cost is the rounds,
    bytes and seconds (without evaluation) up to and including that round.
    """
    sign = pl.when(pl.col("higher")).then(1.0).otherwise(-1.0)
    evaluated, ranked = pl.col("score").drop_nulls(), sign * pl.col("score")
    about = ["run", "title", "variant", "split", "measure", "higher"]
    about += [column for column in data.columns if "." in column]
    return data.group_by("directory", maintain_order=True).agg(
        *(pl.col(column).first() for column in about),
        pl.col("round").max().alias("rounds"),
        pl.col("applied", *COUNTED).sum(),
        (evaluated.last() if last == 1 else evaluated.tail(last).mean()).alias("final"),
        (ranked.max() * sign.first()).alias("best"),
        *(
            pl.col(column).filter(ranked >= sign * target).first().alias(f"{name}_to_{target:g}")
            for target in targets
            for name, column in COSTS.items()
        ),
    )


def measured(data: pl.DataFrame) -> str:
    """Return the name of the score, which must be the same for all runs."""
    evaluated = data.drop_nulls("score")  # an unevaluated run may not know its score yet
    names = sorted((evaluated if len(evaluated) else data)["measure"].unique())
    if len(names) > 1:
        raise ExperimentError(
            f"Some runs are judged by {' and others by '.join(names)}, which cannot be compared;"
            " give runs of one kind."
        )
    return str(names[0])


def judged(configs: Mapping[Path, Experiment], data: pl.DataFrame) -> Objective:
    """Return the objective of runs that are compared; all that are evaluated must share it."""
    name = measured(data)
    found = [RunDirectory(run).objective(config, data.columns) for run, config in configs.items()]
    return next(objective for objective in found if objective.title == name)


def _records(run: Path, config: Experiment) -> list[Flat]:
    """Return the numbers of a run's records; failed, rejected and limited replies are counted."""
    records = [_numbers(flatten(record)) for record in RunDirectory(run).records()]
    names = {name for record in records for name in record}
    objective = RunDirectory(run).objective(config, names)
    for record in records:
        score = record.get(f"{config.evaluate.split}_{objective.score}")
        record |= {objective.score: score, "score": score, "measure": objective.title}
        record["higher"] = objective.scale.higher
    return records


def _numbers(flat: Mapping[str, object]) -> Flat:
    numbers: Flat = {"applied": True, **dict.fromkeys(COUNTED, 0)}
    for key, value in flat.items():
        table, _, name = key.partition(".")
        if table in COUNTED:
            numbers[table] = int(str(numbers[table])) + int(str(value))
        elif not isinstance(value, list):
            numbers[_column(table, name)] = value
    return numbers


def _column(table: str, name: str) -> str:
    """Return the column of a value; no metric of a client has a column of the server's."""
    if table == "metrics":
        return name
    if table == "client_metrics":
        return f"{CLIENTS}{name}"
    return f"{name}_{table}" if name else table


def _cell(value: object) -> object:
    return json.dumps(value) if isinstance(value, (list, dict)) else value
