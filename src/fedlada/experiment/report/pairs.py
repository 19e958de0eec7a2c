"""Paired comparison of each algorithm with a reference, seed by seed: a figure and tables.

Runs of one seed share the first model and the cohorts, so their difference is less noisy than
either of them.  The interval is Student's over the n differences d of the seeds,

    mean(d) ± t(n - 1) sd(d) / sqrt(n).

For rounds, bytes or seconds to a target, d is the logarithm of their ratio, and the result is
exponentiated.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from textwrap import fill
from typing import TYPE_CHECKING

from ...errors import ExperimentError
from ...results.plot import INK, colour, marker
from ..results.scores import capital
from .figures import new_figure, plain_ticks, styled, svg_of
from .page import Figure, Table, Text
from .runs import Runs

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = [
    "Interval",
    "Measure",
    "final_of",
    "forest",
    "has_reference",
    "interval",
    "pairs",
    "reference_of",
]

CONFIDENCE = 0.95
PREFERRED = "fedavg"
SHORT = 12  # maximum number of letters of a score's name above a panel
WIDE = 26  # maximum number of letters of a line beside the panels
SHOWN = 3  # maximum number of panels: the final score, and the last targets that were reached


@dataclass(frozen=True)
class Interval:
    """A mean over ``count`` of ``seeds`` pairs, and its interval if there are two or more.

    Pairs that all have the same difference have no interval either.  Rounds are whole numbers, so
    a few seeds often agree, and an interval of width 0 would claim too much.
    """

    mean: float
    low: float | None
    high: float | None
    count: int
    seeds: int


@dataclass(frozen=True)
class Measure:
    """A compared quantity: a score, by difference, or rounds, bytes or seconds, by ratio."""

    name: str
    column: str
    ratio: bool
    digits: int = 2

    def text(self, pair: Interval | None) -> str:
        """Return the mean and its interval as text, such as ``+1.20 [−0.31, +2.71]``."""
        if pair is None:
            return "–"
        digits = self.digits
        form, sign = (f"{{:.{digits}f}}", "×") if self.ratio else (f"{{:+.{digits}f}}", "")
        numbers = [n for n in (pair.mean, pair.low, pair.high) if n is not None]
        mean, *ends = (form.format(round(n, digits) + 0.0) for n in numbers)  # no −0.00
        text = sign + mean + (f" [{', '.join(ends)}]" if ends else "")
        part = "" if pair.count == pair.seeds else f" ({pair.count} of {pair.seeds})"
        return (text + part).replace("-", "−")

    def shown(self, pair: Interval | None) -> int:
        """Return 1 or -1 if the whole interval is above or below no difference, otherwise 0."""
        if pair is None or pair.low is None or pair.high is None:
            return 0
        none = 1.0 if self.ratio else 0.0
        return (pair.low > none) - (pair.high < none)


def final_of(runs: Runs) -> Measure:
    """Return the measure of the final score."""
    return Measure("final", "final", ratio=False, digits=runs.scale.digits)


def _measures(runs: Runs) -> list[Measure]:
    """Return the measures: final and best score, and rounds to each target."""
    text = runs.scale.text
    return [
        final_of(runs),
        Measure("best", "best", ratio=False, digits=runs.scale.digits),
        *(Measure(f"to {text(t)}", f"rounds_to_{t:g}", ratio=True) for t in runs.targets),
    ]


def has_reference(runs: Runs, wanted: str | None) -> bool:
    """Return whether a variant is the ``wanted`` one, or none is wanted."""
    return wanted is None or any(wanted in (v, runs.titles[v]) for v in runs.variants)


def reference_of(runs: Runs, wanted: str | None) -> str:
    """Return the variant to compare with: the ``wanted`` one, else FedAvg, else the first."""
    named = [v for v in runs.variants if (wanted or PREFERRED) in (v, runs.titles[v])]
    if wanted is None:
        return (named or runs.variants)[0]
    if len(named) != 1:
        raise ExperimentError(
            f"--reference {wanted!r} is {'several' if named else 'none'} of the algorithms here;"
            f" give one of: {', '.join(map(repr, named or runs.variants))}."
        )
    return named[0]


def interval(runs: Runs, variant: str, reference: str, measure: Measure) -> Interval | None:
    """Compare over the seeds that both have; return None if no seed has both numbers."""
    first, second = (_by_seed(runs, name, measure) for name in (variant, reference))
    shared = first.keys() & second.keys()
    both = [(*first[seed], *second[seed]) for seed in sorted(shared)]
    known = [(a, b) for a, m, b, n in both if a is not None and b is not None and m == n]
    if not known:
        return None
    factor = runs.scale.factor
    numbers = _student([math.log(a / b) if measure.ratio else factor * (a - b) for a, b in known])
    if measure.ratio:
        numbers = tuple(math.exp(number) for number in numbers)
    mean, low, high = numbers if len(numbers) == 3 else (numbers[0], None, None)
    return Interval(mean, low, high, len(known), len(shared))


def _student(differences: Sequence[float]) -> tuple[float, ...]:
    """Return the mean and, if the differences differ, the ends of the interval."""
    count = len(differences)
    mean = math.fsum(differences) / count
    if len(set(differences)) == 1:
        return (mean,)
    from scipy.special import stdtrit  # type: ignore[import-untyped,unused-ignore]

    deviation = math.sqrt(math.fsum((d - mean) ** 2 for d in differences) / (count - 1))
    half = float(stdtrit(count - 1, (1 + CONFIDENCE) / 2)) * deviation / math.sqrt(count)
    return mean, mean - half, mean + half


def _by_seed(
    runs: Runs, variant: str, measure: Measure
) -> dict[tuple[int, int], tuple[float | None, int]]:
    """Return the number of each run, and the rounds after which it was measured."""
    rows = runs.of(variant).select("directory", measure.column, "rounds").rows()
    # Scores change when a run continues, rounds to a target do not.
    return {runs.seed(d): (value, 0 if measure.ratio else done) for d, value, done in rows}


def pairs(runs: Runs, reference: str) -> list[Text | Table]:
    """Return tables of all other variants against the reference; empty without pairs."""
    unit = f", {runs.scale.difference}" if runs.heading else ""
    titles = {
        False: f"{capital(runs.measure)} minus that of {reference}{unit}",
        True: f"Rounds divided by those of {reference}",
    }
    tables = [
        _table(runs, reference, title, [m for m in _measures(runs) if m.ratio == ratio])
        for ratio, title in titles.items()
    ]
    filled = [table for table in tables if table.rows and len(table.columns) > 2]
    seeds = max((int(row[1]) for table in filled for row in table.rows), default=0)
    return [Text(_note(runs, seeds)), *filled] if filled else []


def _table(runs: Runs, reference: str, title: str, measures: Sequence[Measure]) -> Table:
    rows = []
    for variant in (v for v in runs.by_score if v != reference):
        intervals = [interval(runs, variant, reference, measure) for measure in measures]
        if seeds := max((pair.seeds for pair in intervals if pair), default=0):
            cells = (m.text(pair) for m, pair in zip(measures, intervals, strict=True))
            rows.append((variant, str(seeds), *cells))
    columns = ("algorithm", "seeds", *(measure.name for measure in measures))
    return Table(caption=title, columns=columns, rows=tuple(rows))


def _note(runs: Runs, seeds: int) -> str:
    """Say how the tables are made, and what their intervals leave out."""
    meaning = "Each cell is the mean over the seeds that both have (of ratios the geometric mean)"
    if seeds == 1:
        return f"{meaning}. One seed has no interval: these differences may be chance."
    splits = {config.data.seed for config in runs.configs.values()}
    shared = "All runs share one partition, so it" if len(splits) == 1 else "It"
    return (
        f"{meaning}, with its {100 * CONFIDENCE:g} % interval by Student's paired t in brackets."
        " There is no interval where all seeds have the same difference. The interval assumes that"
        f" differences are normal, which {seeds} seeds cannot confirm. {shared} covers the first"
        " model, the cohorts and the batches, but no other data. It is not widened for the number"
        " of comparisons. (k of n): only k of n seeds count; in the others one of the two has fewer"
        " rounds or did not reach the target."
    )


def forest(runs: Runs, reference: str) -> Figure | None:
    """Return the figure of the tables: dots with their intervals; None without any interval."""
    others = [variant for variant in runs.drawn if variant != reference]
    final, _, *ratios = _measures(runs)
    intervals = {m: [interval(runs, v, reference, m) for v in others] for m in (final, *ratios)}
    known = [m for m, row in intervals.items() if any(one and one.low is not None for one in row)]
    if final not in known:
        return None
    measures = [final, *known[1:][1 - SHOWN :]]
    alt = f"Against {reference}: " + "; ".join(
        f"{m.name}: "
        + ", ".join(f"{v} {m.text(i)}" for v, i in zip(others, intervals[m], strict=True))
        for m in measures
    )
    with styled():
        names = [fill(variant, WIDE) for variant in others]
        figure = new_figure(0.9 + 0.15 * sum(2 + name.count("\n") for name in names))
        grid = figure.subplots(1, len(measures), squeeze=False, sharey=True)[0]
        for axes, measure in zip(grid, measures, strict=True):
            _draw(axes, measure, dict(zip(others, intervals[measure], strict=True)), runs)
            score = runs.measure if len(runs.measure) <= SHORT else "score"
            axes.set_title(f"Rounds {measure.name}" if measure.ratio else f"Final {score}")
            unit = f"difference, {runs.scale.difference}"
            axes.set_xlabel("ratio" if measure.ratio else unit)
        grid[0].set_yticks(range(len(names)), names)
        svg = svg_of(figure, alt)
    return Figure(
        name="pairs",
        svg=svg,
        alt=alt,
        caption=f"Means and {100 * CONFIDENCE:g} % intervals of the tables below. The vertical line"
        f" is {reference}: differences are those from it, and ratios those to it. An interval that"
        " crosses it shows no difference.",
    )


def _draw(axes: Axes, measure: Measure, rows: dict[str, Interval | None], runs: Runs) -> None:
    if measure.ratio:
        axes.set_xscale("log")
        plain_ticks(axes.xaxis)
    axes.grid(axis="x", linewidth=0.7)
    axes.axvline(1 if measure.ratio else 0, color=INK, linewidth=1)
    for row, (variant, pair) in enumerate(rows.items()):
        if pair is not None:
            position = runs.positions[variant]
            ink = colour(position)
            axes.plot([pair.mean], [row], marker(position), color=ink, markersize=5.5)
            if pair.low is not None and pair.high is not None:
                axes.plot([pair.low, pair.high], [row, row], color=ink, linewidth=1.6)
    axes.set_ylim(len(rows) - 0.5, -0.5)
