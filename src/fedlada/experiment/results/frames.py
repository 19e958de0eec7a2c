"""The records of runs as one polars frame, and a summary with the cost of each target."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from ...errors import ExperimentError
from ...results.columns import column
from ...training.objective import Objective
from ..config.experiment import FREE, Experiment
from ..config.keys import flatten
from ..run.directory import RunDirectory, runs_in

__all__ = [
    *("SEEDS", "by_client", "by_client_in", "client_frame", "configurations", "frame", "judged"),
    *("measured", "numbers", "summary", "varied", "variants", "with_totals"),
]

SEEDS = ("federation.seed", "data.seed")
LOOKED_AT = ("evaluate.train_sample",)
"""Settings that decide what is measured and change nothing in training."""
COSTS = {
    "rounds": "round",
    "bytes": "total_bytes",
    "seconds": "total_seconds",
    "simulated": "time",
}
COUNTED = ("failures", "rejected", "limited")

BY_CLIENT = "evaluation_clients"
"""The metrics of single clients, which have a frame of their own."""

Flat = dict[str, object]


def configurations(directories: Iterable[Path]) -> dict[Path, Experiment]:
    """Return the configuration of every run in the directories."""
    found = [run for directory in directories for run in runs_in(directory)]
    return {run: RunDirectory(run).config for run in found}


def frame(directories: Iterable[Path], *, rounds: int | None = None) -> pl.DataFrame:
    """Return one row per run and round, in order, up to round ``rounds`` if that is given.

    Columns: the ``run`` and its ``directory``; the ``algorithm``, its ``title`` in tables, and
    ``variant``, which adds the settings in which runs of that title differ (except seeds); every
    dotted key in which configurations differ, and always lr and the seed; the ``split`` of the
    evaluation; the ``score``, also under its own name (``accuracy``, ``r2``), and ``measure``, its
    name in tables; whether it is better if ``higher``; the numbers of the record, with metrics
    under their own names and those that clients report under ``client_`` and that name; the number
    of clients ``asked``; and the running totals ``total_bytes`` and ``total_seconds``.
    """
    configs = configurations(directories)
    flat = {run: flatten(config.model_dump(mode="json")) for run, config in configs.items()}
    named, added = variants(configs), dict[str, None]()
    for _, keys in named.values():
        added |= dict.fromkeys(keys)
    shared = [key for key in varied(list(flat.values())) if not key.startswith("settings.")]
    differing = dict.fromkeys([*shared, SEEDS[0], "settings.lr", *added])
    lines = []
    for run, config in configs.items():
        about = {
            "run": run.name,
            "directory": str(run),
            "algorithm": config.algorithm_name,
            "title": config.title,
            "variant": named[run][0],
            "split": config.evaluate.split,
            **{key: _cell(flat[run].get(key)) for key in differing},
        }
        lines += [about | record for record in _records(run, config)]
    if not lines:
        raise ExperimentError("No run has finished a round yet; wait, or fedlada resume DIR.")
    return with_totals(lines, of="directory", rounds=rounds)


def by_client_in(directories: Iterable[Path], *, rounds: int | None = None) -> pl.DataFrame:
    """Return one row for each client that evaluated the model after a round of a run."""
    lines: list[Flat] = []
    for run, config in configurations(directories).items():
        about: Flat = {"run": run.name, "directory": str(run), "algorithm": config.algorithm_name}
        lines += by_client(about, RunDirectory(run).records(), rounds=rounds)
    return client_frame(lines)


def by_client(
    about: Flat, records: Iterable[Mapping[str, Any]], *, rounds: int | None
) -> Iterator[Flat]:
    """Yield a line for each client's evaluation in the records, beginning with ``about``."""
    for record in records:
        if rounds is None or record["round"] <= rounds:
            for client, metrics in record.get(BY_CLIENT, {}).items():
                yield {**about, "round": record["round"], "client": client, **metrics}


def client_frame(lines: Sequence[Flat]) -> pl.DataFrame:
    """Return the lines of clients' evaluations as a frame."""
    if not lines:
        raise ExperimentError(
            "No record has the evaluations of single clients; give simulate evaluate_clients=, or"
            " an experiment evaluate.cohort."
        )
    return pl.DataFrame(lines, infer_schema_length=None)


def with_totals(lines: Sequence[Flat], *, of: str, rounds: int | None) -> pl.DataFrame:
    """Return the lines as a frame with running totals of each run, up to a round."""
    both = pl.sum_horizontal("bytes_down", "bytes_up")
    types = {"bytes_down": pl.Int64, "bytes_up": pl.Int64, "seconds": pl.Float64}  # if all are null
    types |= {"time": pl.Float64}
    lines = [{"time": None, **line} for line in lines]
    found = pl.DataFrame(lines, schema_overrides=types, infer_schema_length=None).with_columns(
        both.cum_sum().over(of).alias("total_bytes"),
        pl.col("seconds").cum_sum().over(of).alias("total_seconds"),
    )
    return found if rounds is None else found.filter(pl.col("round") <= rounds)


def variants(
    configs: Mapping[Path, Experiment], ignored: Sequence[str] = ()
) -> dict[Path, tuple[str, list[str]]]:
    """Return the name of each run's variant: its title and the keys in which runs of it differ.

    The keys are the second value; ``ignored`` ones are left out.
    """
    flat = {run: flatten(config.model_dump(mode="json")) for run, config in configs.items()}
    titles = {run: config.title for run, config in configs.items()}
    differing = {
        title: varied([flat[run] for run in flat if titles[run] == title])
        for title in dict.fromkeys(titles.values())
    }
    named = {}
    for run, title in titles.items():
        keys = [key for key in differing[title] if key not in ignored]
        words = [f"{key.rpartition('.')[2]}={flat[run].get(key)}" for key in keys]
        named[run] = " ".join([title, *words]), keys
    return named


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
    about += [key for key in data.columns if "." in key]
    return data.group_by("directory", maintain_order=True).agg(
        *(pl.col(key).first() for key in about),
        pl.col("round").max().alias("rounds"),
        pl.col("applied", "asked", *COUNTED).sum(),
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
    """Return the numbers of a run's records, with the score by which the run is judged."""
    records = [numbers(flatten(record)) for record in RunDirectory(run).records()]
    names = {name for record in records for name in record}
    objective = RunDirectory(run).objective(config, names)
    for record in records:
        score = record.get(f"{config.evaluate.split}_{objective.score}")
        record |= {objective.score: score, "score": score, "measure": objective.title}
        record["higher"] = objective.scale.higher
    return records


def numbers(flat: Mapping[str, object]) -> Flat:
    """Return the columns of a flat record; failed, rejected and limited replies are counted."""
    columns: Flat = {"applied": True, "asked": None, **dict.fromkeys(COUNTED, 0)}
    for key, value in flat.items():
        table, _, name = key.partition(".")
        if key == "cohort" and isinstance(value, list | tuple):
            private = flat.get("accepted") is None  # it does not say how many took part
            columns["asked"] = None if private else len(value)
        elif table in COUNTED:
            columns[table] = int(str(columns[table])) + int(str(value))
        elif table not in (BY_CLIENT, "incidents") and not isinstance(value, list):
            columns[column(table, name)] = value
    return columns


def _cell(value: object) -> object:
    return json.dumps(value) if isinstance(value, (list, dict)) else value
