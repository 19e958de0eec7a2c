"""Paired comparison of each algorithm with a reference, seed by seed: a figure and tables.

Runs of one seed share the first model and the cohorts, so their difference is less noisy than
either of them.  The interval is Student's over the n differences d of the seeds,

    mean(d) ± t(n - 1) sd(d) / sqrt(n).

For rounds, bytes or seconds to a target, d is the logarithm of their ratio, and the result is
exponentiated.

One is ahead of another if the interval excludes no difference.  The two are level only if the
whole interval lies within a margin, so an algorithm that varies much is level with nobody.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from statistics import fmean, stdev
from textwrap import fill
from typing import TYPE_CHECKING, Literal

from ...errors import ExperimentError
from ...results.plot import INK, colour, marker
from ..results.scores import capital
from .figures import new_figure, plain_ticks, styled, svg_of
from .page import Figure, Table, Text
from .runs import Runs

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from ...training.objective import Scale

__all__ = [
    *("Interval", "Measure", "Word", "final_of", "forest", "has_reference", "holm", "interval"),
    *("paired", "pairs", "reference_of", "rule"),
]

CONFIDENCE = 0.95
MARGINS = {"points": 2.0, "bits": 0.05}
"""By the unit of a score: differences that hardly matter.  In other units none is known."""
RATIO = 1.1
"""Numbers of rounds, bytes or seconds that are not further apart hardly differ."""
Word = Literal["ahead", "behind", "level", "not told apart"]
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
    chance: float | None = None
    """The probability of a difference as large if there were none: Student's two-sided p."""


@dataclass(frozen=True)
class Measure:
    """A compared quantity: a score, by difference, or rounds, bytes or seconds, by ratio."""

    name: str
    column: str
    ratio: bool
    digits: int = 2
    margin: float = 0.0
    """The largest difference that hardly matters, for a score."""

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

    def word(self, pair: Interval | None, better: int) -> Word:
        """Say what the interval shows; ``better`` is 1 if more is better, otherwise -1."""
        none, margin = (1.0, RATIO) if self.ratio else (0.0, self.margin)
        if pair is None or pair.count < 2:
            return "not told apart"
        if pair.low is None or pair.high is None:  # equal scores are those of equal runs
            return "level" if pair.mean == none and not self.ratio else "not told apart"
        if pair.low > none or pair.high < none:
            return "ahead" if better * (pair.mean - none) > 0 else "behind"
        least = 1 / margin if self.ratio else -margin
        return "level" if least <= pair.low and pair.high <= margin else "not told apart"


def holm(pairs: Iterable[Interval | None]) -> int:
    """Return how many of some comparisons show a difference after Holm's correction for all."""
    chances = sorted(pair.chance for pair in pairs if pair and pair.chance is not None)
    limits = ((1 - CONFIDENCE) / left for left in range(len(chances), 0, -1))
    held = takewhile(lambda both: both[0] <= both[1], zip(chances, limits, strict=True))
    return sum(1 for _ in held)


def rule(scale: Scale) -> str:
    """Say when one is ahead of another, and when two are level."""
    unit = scale.difference
    level = f"the whole interval lies within {MARGINS.get(unit, 0):g} {unit}"
    return (
        f"Ahead, or behind: the {100 * CONFIDENCE:g} % interval of the difference excludes 0."
        + (f" Level: {level}. Otherwise" if unit in MARGINS else " Otherwise")
        + " these seeds do not tell the two apart."
    )


def final_of(runs: Runs) -> Measure:
    """Return the measure of the final score."""
    margin = MARGINS.get(runs.scale.difference, 0.0)
    return Measure("final", "final", ratio=False, digits=runs.scale.digits, margin=margin)


def _measures(runs: Runs) -> list[Measure]:
    """Return the measures: final and best score, and rounds to each target."""
    text = runs.scale.text
    return [
        final_of(runs),
        replace(final_of(runs), name="best", column="best"),
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
    found = paired([math.log(a / b) if measure.ratio else factor * (a - b) for a, b in known])
    if measure.ratio:
        low, high = (None if end is None else math.exp(end) for end in (found.low, found.high))
        found = replace(found, mean=math.exp(found.mean), low=low, high=high)
    return replace(found, seeds=len(shared))


def paired(differences: Sequence[float]) -> Interval:
    """Return the mean of the differences, by seed, and Student's interval if they differ."""
    count = len(differences)
    mean = fmean(differences)
    deviation = stdev(differences) if count > 1 else 0.0
    if not deviation:
        return Interval(mean, None, None, count, count)
    from scipy.special import stdtr, stdtrit  # type: ignore[import-untyped,unused-ignore]

    error = deviation / math.sqrt(count)
    half = float(stdtrit(count - 1, (1 + CONFIDENCE) / 2)) * error
    chance = 2 * float(stdtr(count - 1, -abs(mean) / error))
    return Interval(mean, mean - half, mean + half, count, count, chance)


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
    rows, found = [], dict[Measure, list[Interval | None]]({measure: [] for measure in measures})
    for variant in (v for v in runs.by_score if v != reference):
        intervals = [interval(runs, variant, reference, measure) for measure in measures]
        for measure, pair in zip(measures, intervals, strict=True):
            found[measure].append(pair)
        if seeds := max((pair.seeds for pair in intervals if pair), default=0):
            cells = (m.text(pair) for m, pair in zip(measures, intervals, strict=True))
            rows.append((variant, str(seeds), *cells))
    columns = ("algorithm", "seeds", *(measure.name for measure in measures))
    return Table(caption=title, columns=columns, rows=tuple(rows), note=_held(found))


def _held(found: Mapping[Measure, Sequence[Interval | None]]) -> str:
    """Say how many differences of each column remain after Holm's correction."""
    counts = {
        measure.name: (sum(measure.word(p, 1) in ("ahead", "behind") for p in pairs), holm(pairs))
        for measure, pairs in found.items()
    }
    told = ", ".join(f"{name} {left} of {n}" for name, (n, left) in counts.items() if n)
    which = "Intervals that show a difference, and still do after Holm's correction for all of"
    return f"{which} their column: {told}." if told else ""


def _note(runs: Runs, seeds: int) -> str:
    """Say how the tables are made, and what their intervals leave out."""
    meaning = "Each cell is the mean over the seeds that both have (of ratios the geometric mean)"
    if seeds == 1:
        return f"{meaning}. One seed has no interval: these differences may be chance."
    splits = {config.data.seed for config in runs.configs.values()}
    also = "" if len(splits) > 1 else " All runs share one partition."
    return (
        f"{meaning}, with its {100 * CONFIDENCE:g} % interval by Student's paired t in brackets."
        " There is no interval where all seeds have the same difference. The interval assumes that"
        f" differences are normal, which {seeds} seeds cannot confirm. It covers what the seeds"
        f" decide, such as the first model and the cohorts, but no other test data.{also}"
        f" {rule(runs.scale)} No interval is widened for the number of comparisons; a note below"
        " each table says what Holm's correction leaves. (k of n): only k of n seeds count; in the"
        " others one of the two has fewer rounds or did not reach the target."
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
        " crosses it does not show which is better.",
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
