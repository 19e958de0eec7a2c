"""Paired comparison of each algorithm with a reference, seed by seed.

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

from ...errors import ExperimentError
from ..results.comparison import capital
from .blocks import Table, Text
from .runs import Runs, percent

__all__ = [
    *("CONFIDENCE", "Interval", "Measure", "final_of", "interval", "measures_of", "pairs"),
    "reference_of",
]

CONFIDENCE = 0.95
PREFERRED = "fedavg"

Known = tuple[float | None, int]  # a number, and the rounds after which it was measured


@dataclass(frozen=True)
class Interval:
    """A mean over ``count`` of ``seeds`` pairs, and its interval if there are two or more.

    Pairs that all have the same difference have no interval either: rounds are whole numbers, so
    a few seeds often agree, and an interval without width would show what is not known.
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

    def text(self, found: Interval | None) -> str:
        """Return the mean and its interval as text, such as ``+1.20 [−0.31, +2.71]``."""
        if found is None:
            return "–"
        digits = self.digits
        form, sign = (f"{{:.{digits}f}}", "×") if self.ratio else (f"{{:+.{digits}f}}", "")
        numbers = [n for n in (found.mean, found.low, found.high) if n is not None]
        mean, *ends = (form.format(round(n, digits) + 0.0) for n in numbers)  # no −0.00
        text = sign + mean + (f" [{', '.join(ends)}]" if ends else "")
        part = "" if found.count == found.seeds else f" ({found.count} of {found.seeds})"
        return (text + part).replace("-", "−")

    def shown(self, found: Interval | None) -> int:
        """Return 1 or -1 if the whole interval is above or below no difference, otherwise 0."""
        if found is None or found.low is None or found.high is None:
            return 0
        none = 1.0 if self.ratio else 0.0
        return (found.low > none) - (found.high < none)


def final_of(runs: Runs) -> Measure:
    """Return the measure of the final score."""
    return Measure("final", "final", ratio=False, digits=runs.scale.digits)


def measures_of(runs: Runs) -> list[Measure]:
    """Return the measures: final and best score, and rounds to each target."""
    text = runs.scale.text
    return [
        final_of(runs),
        Measure("best", "best", ratio=False, digits=runs.scale.digits),
        *(Measure(f"to {text(t)}", f"rounds_to_{t:g}", ratio=True) for t in runs.targets),
    ]


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
    own, other = (_by_seed(runs, name, measure) for name in (variant, reference))
    shared = own.keys() & other.keys()
    both = [(*own[seed], *other[seed]) for seed in sorted(shared)]
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


def pairs(runs: Runs, reference: str) -> list[Text | Table]:
    """Return tables of all other variants against the reference; empty without pairs."""
    scores = [measure for measure in measures_of(runs) if not measure.ratio]
    rounds = [measure for measure in measures_of(runs) if measure.ratio]
    score, unit = capital(runs.measure), f", {runs.scale.difference}" if runs.heading else ""
    tables = [
        _table(runs, reference, f"{score} minus that of {reference}{unit}", scores),
        _table(runs, reference, f"Rounds divided by those of {reference}", rounds),
    ]
    found = [table for table in tables if table.rows and len(table.columns) > 2]
    most = max((int(row[1]) for table in found for row in table.rows), default=0)
    return [Text(_note(most)), *found] if found else []


def _table(runs: Runs, reference: str, title: str, measures: Sequence[Measure]) -> Table:
    rows = []
    for variant in (v for v in runs.by_score if v != reference):
        found = [interval(runs, variant, reference, measure) for measure in measures]
        if seeds := max((one.seeds for one in found if one), default=0):
            cells = (m.text(one) for m, one in zip(measures, found, strict=True))
            rows.append((variant, str(seeds), *cells))
    columns = ("algorithm", "seeds", *(measure.name for measure in measures))
    return Table(caption=title, columns=columns, rows=tuple(rows))


def _by_seed(runs: Runs, variant: str, measure: Measure) -> dict[tuple[int, int], Known]:
    rows = runs.of(variant).select("directory", measure.column, "rounds").rows()
    # Scores change when a run continues, rounds to a target do not.
    return {runs.seed(d): (value, 0 if measure.ratio else done) for d, value, done in rows}


def _note(most: int) -> str:
    meaning = "Means over the seeds that both have (of ratios the geometric mean)"
    if most == 1:
        return f"{meaning}. One seed has no interval: these differences may be chance."
    few = f"With only {most} seeds nobody can check that" if most < 10 else "It assumes that"
    return (
        f"{meaning}, and in brackets their {percent(CONFIDENCE)} interval by Student's paired t"
        " (none where all seeds differ by the same)."
        f" {few} differences are normal{', as it assumes' if most < 10 else ''}. It covers the"
        " first model, cohorts and batches, not other data, and is not widened for the number of"
        " comparisons. (k of n): only k of n seeds count, as in the others one of the two did not"
        " reach the target, or has fewer rounds."
    )
