"""The slopes of ``speedup.py`` and their drawing."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from scipy.stats import t as student  # type: ignore[import-untyped]

from fedlada.experiment.report.figures import new_figure, styled, svg_of
from fedlada.results.plot import INK, MUTED, colour, marker

__all__ = ["EXPECTED", "Row", "Slopes", "draw", "fit"]

EXPECTED = -0.5
Row = Mapping[str, Any]
Slopes = dict[str, dict[str, float]]


def fit(rows: Sequence[Row], column: str) -> Slopes:
    """Slopes of log(mean over seeds): against S·K·T, and against each when all three are free.

    The intervals are Student's, 95 %, with one observation per (S, K, T).  What bends away from
    the straight line widens them, as it should; that all cells share their problems does not.
    """
    cells = _cells(rows, column)
    logs, heights = np.log(np.array(list(cells), dtype=float)), np.log(list(cells.values()))
    slopes: Slopes = {}
    for names, across in (("SKT",), logs.sum(1, keepdims=True)), (("S", "K", "T"), logs):
        design = np.column_stack([np.ones(len(logs)), across])
        found = np.linalg.lstsq(design, heights, rcond=None)[0]
        free = len(heights) - len(found)
        variance = np.square(heights - design @ found).sum() / free
        half = student.ppf(0.975, free) * np.sqrt(
            variance * np.diag(np.linalg.inv(design.T @ design))
        )
        for k, name in enumerate(names, start=1):
            low, high = float(found[k] - half[k]), float(found[k] + half[k])
            slopes[name] = {"slope": float(found[k]), "low": low, "high": high}
        if names == ("SKT",):
            slopes["SKT"]["at 1"] = float(np.exp(found[0]))
    return slopes


def _cells(rows: Sequence[Row], column: str) -> dict[tuple[int, ...], float]:
    """The mean over seeds for each (S, K, T)."""
    cells: dict[tuple[int, ...], list[float]] = {}
    for row in rows:
        cells.setdefault(tuple(int(row[n]) for n in "SKT"), []).append(float(row[column]))
    return {cell: float(np.mean(values)) for cell, values in cells.items()}


def draw(by_setting: Mapping[str, Sequence[Row]], slopes: Mapping[str, Slopes]) -> str:
    """Left: the runs of the first setting against S·K·T.  Right: the slopes of every setting."""
    first, rows = next(iter(by_setting.items()))
    with styled():
        figure = new_figure(4.0)
        left, right = figure.subplots(1, 2, width_ratios=(3, 2))
        _runs(left, _cells(rows, "square_z"), slopes[first]["SKT"])
        left.set(title=f"{first}: mean of ‖∇F(z)‖²", xlabel="S·K·T")
        _forest(right, slopes)
        right.set(title="Slopes, 95 % intervals", xlabel="slope (dashed: -1/2)")
        alt = f"{first}: log-log slope {slopes[first]['SKT']['slope']:.2f}, expected {EXPECTED}"
        return svg_of(figure, alt)


def _runs(axes: Axes, cells: Mapping[tuple[int, ...], float], found: Mapping[str, float]) -> None:
    longest = max(rounds for *_, rounds in cells)
    for place, cohort in enumerate(sorted({cell[0] for cell in cells})):
        looks: dict[str, Any] = {"color": colour(place), "marker": marker(place), "linestyle": ""}
        own = {cell: height for cell, height in cells.items() if cell[0] == cohort}
        for fill in ("full", "none"):
            part = [c for c in own if (c[2] == longest) == (fill == "full")]
            label = f"S = {cohort}" if fill == "full" else None
            heights = [own[c] for c in part]
            axes.plot([math.prod(c) for c in part], heights, fillstyle=fill, label=label, **looks)
    ends = np.array([f(math.prod(cell) for cell in cells) for f in (min, max)], dtype=float)
    label = f"fit: slope {found['slope']:.2f} [{found['low']:.2f}, {found['high']:.2f}]"
    axes.plot(ends, found["at 1"] * ends ** found["slope"], color=INK, label=label)
    middle = math.sqrt(ends.prod())
    expected = found["at 1"] * middle ** found["slope"] * (ends / middle) ** EXPECTED
    axes.plot(ends, expected, color=MUTED, dashes=(4, 2), label="slope -1/2")
    axes.plot([], [], " ", label=f"filled: T = {longest}")
    axes.set(xscale="log", yscale="log")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter("{x:g}")
    axes.grid(axis="y", linewidth=0.7)
    axes.legend(loc="lower left", fontsize=7.5)


def _forest(axes: Axes, slopes: Mapping[str, Slopes]) -> None:
    for row, own in enumerate(slopes.values()):
        for place, (what, found) in enumerate(own.items()):
            height, ink = -row + 0.27 - 0.18 * place, colour(place)
            axes.plot((found["low"], found["high"]), (height, height), color=ink)
            label = f"in {'·'.join(what)}" if row == 0 else None
            axes.plot(found["slope"], height, marker(place), color=ink, markersize=5, label=label)
    dashed: dict[str, Any] = {"linestyle": (0, (4, 2)), "linewidth": 1, "zorder": 0}
    axes.plot((EXPECTED, EXPECTED), (0.5, 0.5 - len(slopes)), color=MUTED, **dashed)
    axes.set_yticks([-row for row in range(len(slopes))], list(slopes))
    axes.set_ylim(0.5 - len(slopes), 1.3)
    axes.legend(ncols=2, loc="upper center", handletextpad=0, columnspacing=0.8)
