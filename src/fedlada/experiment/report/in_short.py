"""The summary of a report: it calls one algorithm better only where the interval shows it.

The leader of a measure has the best mean over its seeds and is shown to be behind nobody.  It is
compared with each other over the seeds that both have, see :mod:`.pairs`; an algorithm with one
seed is ahead of nobody, and nobody of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..results.comparison import spread
from .blocks import Block, Points, Text
from .pairs import CONFIDENCE, Measure, final_of, interval
from .runs import Runs, Unit, percent

__all__ = ["in_short", "listed"]

NAMED = 3  # maximum number of algorithms in a list; the others are counted


def in_short(runs: Runs) -> list[Block]:
    """Return what is shown about the final score and about the cost of one target."""
    scale = runs.scale
    words, unit = "is above" if scale.higher else "is below", Unit(scale.unit, scale.factor)
    points = [_compared(runs, final_of(runs), f"Final {runs.measure}", words, unit, scale.digits)]
    unreached = [t for t in runs.targets if not _complete(runs, f"rounds_to_{t:g}")]
    if target := _telling(runs):
        titles = {
            "rounds": ("Rounds", "needs fewer than", Unit("", 1)),
            "bytes": (runs.bytes_unit.name, "sends less than", runs.bytes_unit),
            "seconds": (runs.time_unit.name.capitalize(), "takes less than", runs.time_unit),
        }
        for name, (title, words, unit) in titles.items():
            measure = Measure(title, f"{name}_to_{target:g}", ratio=True)
            title = f"{title} to {scale.text(target)}"
            points.append(_compared(runs, measure, title, words, Unit("", unit.factor), 1))
    alone = [v for v in runs.by_score if len(runs.of(v)) == 1]
    if alone and len(runs.variants) > 1:
        which = "" if alone == runs.by_score else f": {listed(alone, most=len(alone))}"
        points.append(f"One seed cannot tell who is ahead{which}.")
    if unreached:
        points.append(f"No algorithm reached {listed(map(scale.text, unreached))} in all its runs.")
    told = tuple(filter(None, points))
    note = f"In brackets: {percent(CONFIDENCE)} intervals over runs of the same seed; see How sure."
    return [Points(told), *([Text(note)] if any("[" in point for point in told) else [])]


def _telling(runs: Runs) -> float | None:
    """Return the target that most algorithms reached in all their runs, the hardest of these."""
    counts = {t: len(_complete(runs, f"rounds_to_{t:g}")) for t in runs.targets}
    hardest = max(counts, key=lambda t: (counts[t], runs.scale.sign * t), default=None)
    return hardest if hardest is not None and counts[hardest] else None


def _complete(runs: Runs, column: str) -> dict[str, list[float]]:
    """Return the numbers of the algorithms that have one in each of their runs."""
    found = {variant: runs.of(variant)[column] for variant in runs.by_score}
    return {v: [float(n) for n in s] for v, s in found.items() if len(s) and not s.null_count()}


def _compared(runs: Runs, measure: Measure, title: str, words: str, unit: Unit, digits: int) -> str:
    """Return one sentence about the leader of a measure, or about why there is none."""
    known = _complete(runs, measure.column)
    better = -1 if measure.ratio else runs.scale.sign  # fewer rounds, a better score
    order = sorted(known, key=lambda v: -better * sum(known[v]) / len(known[v]))
    values = {v: _value([unit.factor * n for n in known[v]], unit.name, digits) for v in order}
    seeded = [v for v in order if len(known[v]) > 1]
    if len(order) == 1:
        one = " (one seed)" if not seeded else ""
        return f"{title}: {order[0]}, {values[order[0]]}{one}."
    parts = []
    if len(seeded) > 1:
        leader, ahead, level = _leader(runs, measure, seeded, better)
        if ahead:
            parts.append(f"{leader}, {values[leader]}, {words} {listed(ahead)}")
        if level:
            parts.append(f"no difference shown between {leader} and {listed(level)}")
        if not parts:
            parts.append("each is behind another")
    return f"{title}: {'; '.join(parts)}." if parts else ""


def _leader(
    runs: Runs, measure: Measure, order: Sequence[str], better: int
) -> tuple[str, list[str], list[str]]:
    """Return the leader, those that it is shown to be ahead of, and the others."""
    kind = "ratio" if measure.ratio else "difference"
    for leader in order:
        found: dict[int, list[str]] = {better: [], 0: [], -better: []}
        for other in (v for v in order if v != leader):
            pair = interval(runs, leader, other, measure)
            own = found[measure.shown(pair)]
            what = "" if own else f"paired {kind} "  # said once
            own.append(f"{other} ({what}{measure.text(pair)})")
        if not found[-better]:
            return leader, found[better], found[0]
    return order[0], [], []


def _value(numbers: Sequence[float], unit: str, digits: int) -> str:
    return f"{spread(numbers, digits)} {unit}".strip()


def listed(words: Iterable[str], most: int = NAMED) -> str:
    """Return ``a, b and c``, or ``a, b, c and 4 more``."""
    all_words = list(words)
    shown = all_words[:most]
    more = len(all_words) - len(shown)
    shown += [f"{more} more"] if more else []
    return " and ".join(filter(None, (", ".join(shown[:-1]), shown[-1])))
