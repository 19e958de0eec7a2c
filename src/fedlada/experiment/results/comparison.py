"""Comparison of runs over seeds: best and final score, and the cost of reaching each target."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import polars as pl
from rich.box import SIMPLE_HEAD
from rich.console import Group
from rich.table import Table
from rich.text import Text

from ...client.scale import PERCENT, Scale
from .frames import configurations, frame, judged, measured, summary

__all__ = [
    *("capital", "comparison", "reached", "scored", "span", "spread", "targets_of", "unapplied"),
]


def targets_of(
    directories: Sequence[Path], scale: Scale = PERCENT, given: Sequence[float] | None = None
) -> list[float]:
    """Return the targets given, else those in the configurations of the runs, the hardest last."""
    configs = configurations(directories).values()
    noted = {target for config in configs for target in config.evaluate.targets}
    for target in given or ():
        scale.check_target(target, "--target")
    return sorted(noted if given is None else set(given), key=lambda target: scale.sign * target)


def comparison(
    directories: Sequence[Path],
    *,
    targets: Sequence[float] | None = None,
    rounds: int | None = None,
) -> Group:
    """Return one table of scores and one per target; a row is a variant over its seeds."""
    data = frame(directories, rounds=rounds)
    scale = judged(configurations(directories), data).scale
    chosen = targets_of(directories, scale, targets)
    runs = summary(data, chosen)
    groups = [group for _, group in runs.group_by("variant", maintain_order=True)]
    splits = " and ".join(runs["split"].unique().sort())
    scores = {
        "algorithm": [str(group["variant"][0]) for group in groups],
        "runs": [str(len(group)) for group in groups],
        "rounds": [span(group["rounds"]) for group in groups],
        "best": [scored(group["best"], scale) for group in groups],
        "final": [scored(group["final"], scale) for group in groups],
    }
    title = capital(measured(data))
    tables = [_table(f"{title} on {splits}{scale.heading(title.lower())}", scores)]
    for target in chosen:
        costs = {
            label: [reached(group[f"{name}_to_{target:g}"], scale, 1) for group in groups]
            for label, name, scale in COSTS
        }
        names = {"algorithm": [str(group["variant"][0]) for group in groups]}
        tables.append(_table(f"First round at {scale.text(target)}", names | costs))
    whole = (pl.col("applied") == pl.col("rounds"), pl.col("failures", "rejected") == 0)
    if len(runs.filter(*whole)) < len(runs):
        tables.append(_dropped(groups))
    note = "mean ± standard deviation over runs; MB both ways, all clients; evaluation not timed"
    return Group(*tables, note, *(Text(warning, "bold") for warning in unapplied(runs)))


COSTS = (("rounds", "rounds", 1.0), ("MB", "bytes", 1e-6), ("seconds", "seconds", 1.0))


def _dropped(groups: Sequence[pl.DataFrame]) -> Table:
    """Return what did not enter the model: rounds that were not applied, and replies."""
    return _table(
        "Rounds that were applied, and replies that were not",
        {
            "algorithm": [str(group["variant"][0]) for group in groups],
            "rounds": [f"{group['rounds'].sum():,}" for group in groups],
            "applied": [f"{group['applied'].sum():,}" for group in groups],
            "no reply": [f"{group['failures'].sum():,}" for group in groups],
            "rejected": [f"{group['rejected'].sum():,}" for group in groups],
        },
    )


def _table(title: str, columns: Mapping[str, Sequence[str]]) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD)
    for name in columns:
        table.add_column(name, justify="left" if name == "algorithm" else "right", no_wrap=True)
    for row in zip(*columns.values(), strict=True):
        table.add_row(*row)
    return table


def capital(text: str) -> str:
    """Return the text with a capital first letter and the rest unchanged."""
    return text[:1].upper() + text[1:]


def unapplied(runs: pl.DataFrame) -> list[str]:
    """Return a warning about the runs in which no round was applied, if there are any."""
    idle = runs.filter(pl.col("applied") == 0)["run"].to_list()
    if not idle:
        return []
    which = f"{len(idle)} of {len(runs)} runs"
    return [
        f"No round was applied in {which}, whose scores are those of the first model:"
        f" {', '.join(idle)}. Too few replies came or were accepted."
    ]


def reached(values: pl.Series, scale: float, digits: int) -> str:
    """Return the cost of reaching a target, over the runs that reached it."""
    there = values.drop_nulls()
    if not len(there):
        return "not reached"
    part = "" if len(there) == len(values) else f" ({len(there)} of {len(values)})"
    return spread([scale * v for v in there], digits) + part


def spread(values: Sequence[float], digits: int) -> str:
    """Return mean and standard deviation as ``12.3 ± 0.4``; only the mean if all are equal."""
    if not values:
        return "–"
    mean = f"{sum(values) / len(values):,.{digits}f}"
    return mean if len(set(values)) == 1 else f"{mean} ± {pl.Series(values).std():,.{digits}f}"


def scored(values: pl.Series, scale: Scale) -> str:
    """Return the mean and standard deviation of scores in their unit."""
    return spread([scale.factor * v for v in values.drop_nulls()], scale.digits)


def span(values: pl.Series) -> str:
    """Return the range of whole numbers, from the smallest to the largest."""
    numbers = sorted({int(value) for value in values})
    return str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]}–{numbers[-1]}"
