"""Scores of runs: the targets to reach, their order and ranks, and their text in tables."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from math import inf
from pathlib import Path
from typing import TypeVar

import polars as pl

from ...training.objective import PERCENT, Scale
from .frames import configurations

__all__ = [
    *("best_first", "capital", "ranks", "reached", "scored", "shown", "span", "spread"),
    *("targets_of", "unapplied"),
]

Name = TypeVar("Name", bound=Hashable)


def best_first(scores: Mapping[Name, float | None], scale: Scale) -> list[Name]:
    """Return the names by score, the best first; equals stay in order, and None is last."""
    return sorted(scores, key=lambda name: _loss(scores[name], scale))


def ranks(scores: Mapping[Name, float | None], scale: Scale) -> dict[Name, float]:
    """Return the rank of each name, 1 for the best; equal scores share the mean of their ranks."""
    losses = [_loss(score, scale) for score in scores.values()]
    return {
        name: sum(other < own for other in losses) + (losses.count(own) + 1) / 2
        for name, own in zip(scores, losses, strict=True)
    }


def shown(score: float | None, scale: Scale) -> str:
    """Return a score for a column of a table; None, that of a run that diverged, in words."""
    return "diverged" if score is None else scale.number(score)


def _loss(score: float | None, scale: Scale) -> float:
    return inf if score is None else -scale.sign * score


def targets_of(
    directories: Sequence[Path], scale: Scale = PERCENT, given: Sequence[float] | None = None
) -> list[float]:
    """Return the targets given, else those in the configurations of the runs, the hardest last."""
    configs = configurations(directories).values()
    noted = {target for config in configs for target in config.evaluate.targets}
    for target in given or ():
        scale.check_target(target, "--target")
    return sorted(noted if given is None else set(given), key=lambda target: scale.sign * target)


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
