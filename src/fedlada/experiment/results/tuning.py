"""The best settings of each algorithm in a sweep, by the score on the validation split.

The score of a run is its mean accuracy (or R², or another score of its task) over the last
:data:`LAST` evaluated rounds, because single rounds are noisy.  The score of settings is the mean
over their seeds.  All runs must have the same number of rounds, and none may have used the test
split.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import polars as pl
from rich.table import Table

from ...errors import ExperimentError
from ..config.experiment import Experiment
from ..config.keys import flatten
from ..packed import directory_of
from ..run.directory import RunDirectory
from .frames import configurations, frame, judged, measured, summary, varied

__all__ = ["BEST", "LAST", "choose", "edges"]

BEST = "best.toml"
LAST = 5


def choose(directory: Path) -> Table:
    """Write ``best.toml``, one ``[[sweep.cell]]`` per algorithm, and return a table of scores."""
    configs = configurations([directory])
    _check(configs)
    data = frame([directory])
    scale = judged(configs, data).scale
    scores = (
        summary(data, last=LAST)
        .group_by("title", "variant", maintain_order=True)
        .agg(pl.col("final").mean().alias("score"), pl.col("directory").first())
        .sort("score", descending=scale.higher, maintain_order=True, nulls_last=True)
    )
    table = Table(
        "algorithm",
        f"validation {measured(data)}{scale.heading(measured(data)).replace(',', '')}",
        "",
        title=f"Mean of the last {LAST} evaluations",
    )
    blocks = []
    for _, group in scores.group_by("title", maintain_order=True):
        tried = [configs[Path(name)] for name in group["directory"]]
        keys = varied([flatten(config.model_dump(mode="json")) for config in tried])
        blocks.append(_block(tried[0], keys))
        for row, config in zip(group.rows(named=True), tried, strict=True):
            chosen = "best" if config is tried[0] else ""
            if chosen and (at := edges(config, tried)):
                chosen += f"; at the edge of those tried, so try beyond: {at}"
            score = "diverged" if row["score"] is None else scale.number(row["score"])
            table.add_row(row["variant"], score, chosen)
    (directory_of(directory) / BEST).write_text("\n".join(blocks))
    return table


def _check(configs: dict[Path, Experiment]) -> None:
    for run, config in configs.items():
        if config.evaluate.split != "validation":
            raise ExperimentError(
                f"{run} was evaluated on the test split; settings are chosen on"
                ' evaluate.split = "validation".'
            )
        if not RunDirectory(run).finished():
            raise ExperimentError(f"{run} is not finished; run fedlada resume {run.parent}.")
    budgets = {config.federation.rounds for config in configs.values()}
    if len(budgets) > 1:
        raise ExperimentError(
            f"runs had {' and '.join(map(str, sorted(budgets)))} rounds; the comparison is fair"
            " only with equal budgets."
        )


def _block(config: Experiment, keys: Sequence[str]) -> str:
    """Return a cell for another sweep's file; JSON of numbers, strings and lists is valid TOML."""
    flat = flatten(config.model_dump(mode="json"))
    names = ["algorithm", *(["label"] if config.label else []), *keys]
    lines = [f"{key} = {_value(flat[key])}" for key in names]
    return "\n".join(["[[sweep.cell]]", *lines, ""])


def _value(value: object) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {json.dumps(v)}" for key, v in value.items()) + " }"
    # In a sweep a list holds alternatives, so a value that is a list goes into another list.
    return json.dumps([value] if isinstance(value, list) else value)


def edges(best: Experiment, tried: Sequence[Experiment]) -> str:
    """Return the numbers of the best settings that are the lowest or highest of those tried.

    The result is text such as ``lr 0.3 (highest)``, empty if there are none.
    """
    flat = [flatten(config.model_dump(mode="json")) for config in tried]
    own, at = flatten(best.model_dump(mode="json")), []
    for key in varied(flat):
        numbers = {value for one in flat if isinstance(value := one[key], (int, float))}
        if len(numbers) > 1 and own[key] in (min(numbers), max(numbers)):
            end = "lowest" if own[key] == min(numbers) else "highest"
            at.append(f"{key.rpartition('.')[2]} {own[key]} ({end})")
    return ", ".join(at)
