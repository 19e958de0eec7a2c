"""The lines of curves: mean, smallest and largest value over seeds at each evaluated round."""

from __future__ import annotations

import math
from dataclasses import dataclass

import polars as pl

from .runs import Runs, Unit

__all__ = ["Series", "recorded", "series", "thinned"]

DRAWN = 300  # maximum points of a line; more make a larger file but not a better figure
WEIGHT = 18_000  # maximum points of a figure, for a file below 300 kB


@dataclass(frozen=True)
class Series:
    """A line and the band around it; ``position`` determines colour, dashes and marker."""

    name: str
    position: int
    x: tuple[float, ...]
    mean: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]

    def at(self, x: float) -> float:
        """Return the mean at the last point that is not beyond x."""
        return self.mean[max(sum(1 for own in self.x if own <= x) - 1, 0)]

    def coarse(self, most: int) -> Series:
        """Return the series with about ``most`` of its points, among them the last."""
        step, last = math.ceil(len(self.x) / most), len(self.x) - 1
        kept = [k for k in range(len(self.x)) if k % step == 0 or k == last]
        every = (self.x, self.mean, self.low, self.high)
        return Series(self.name, self.position, *(tuple(v[k] for k in kept) for v in every))


def recorded(runs: Runs, column: str) -> bool:
    """Tell whether any record has a value in the column."""
    return column in runs.rounds.columns and runs.rounds[column].count() > 0


def thinned(runs: Runs, column: str, panels: int = 1) -> int:
    """Return the thinning step n: a figure with ``panels`` panels draws every n-th point."""
    known = runs.rounds.drop_nulls(column)
    most = max(len(set(own["round"])) for _, own in known.group_by("variant"))
    # The 3 stands for a line and both edges of its band.
    drawn = min(DRAWN, WEIGHT // (3 * panels * len(runs.variants)))
    return math.ceil(most / max(drawn, 1))


def series(
    runs: Runs,
    column: str,
    *,
    against: str = "round",
    x: Unit | None = None,
    scale: float = 1,
    panels: int = 1,
) -> list[Series]:
    """Return one series per variant that has the column.

    Its points are the rounds at which the column was recorded. Both x and y are means over the
    runs that have the round, so the end of a band may have fewer runs than its beginning.
    """
    factor = x.factor if x else 1.0
    lines = []
    for variant, position in runs.positions.items():
        points = (
            runs.rounds.filter(pl.col("variant") == variant)
            .select("round", pl.col(against).alias("x"), pl.col(column).cast(pl.Float64).alias("y"))
            .drop_nulls("y")
            .group_by("round")
            .agg(
                pl.col("x").mean(),
                pl.col("y").mean(),
                pl.col("y").min().alias("low"),
                pl.col("y").max().alias("high"),
            )
            .sort("round")
        )
        if not len(points):
            continue
        step, last = thinned(runs, column, panels), len(points) - 1
        kept = points.with_row_index().filter(
            (pl.col("index") % step == 0) | (pl.col("index") == last)
        )
        lines.append(
            Series(
                variant,
                position,
                tuple(factor * float(v) for v in kept["x"]),
                *(tuple(scale * float(v) for v in kept[name]) for name in ("y", "low", "high")),
            )
        )
    return lines
