"""The summary of a report: it calls one algorithm better only where the interval shows it.

The leader of a measure has the best mean over its seeds among those that are behind nobody.  It is
compared with each other algorithm over the seeds that both have, see :mod:`.pairs`.  One seed
shows nothing, so an algorithm with one seed is neither ahead, behind nor level.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from ..results.scores import capital, spread
from .page import Block, Points, Text
from .pairs import Measure, Word, final_of, interval
from .runs import Runs, Unit

__all__ = ["listed", "summary"]

WORDS = {
    "rounds": "needs fewer than",
    "bytes": "sends less than",
    "seconds": "takes less than",
    "simulated": "takes less than",
}
NAMED = 3  # maximum number of algorithms in a list, and of intervals in a sentence


def summary(runs: Runs) -> list[Block]:
    """Return what is shown about the final score and about the cost of one target."""
    scale = runs.scale
    words, unit = "is above" if scale.higher else "is below", Unit(scale.unit, scale.factor)
    points = [_compared(runs, final_of(runs), f"Final {runs.measure}", words, unit, scale.digits)]
    if (target := _hardest(runs)) is not None:
        for cost, unit in runs.cost_units.items():
            title = f"{capital(unit.name)} to {scale.text(target)}"
            measure = Measure(title, f"{cost}_to_{target:g}", ratio=True)
            points.append(_compared(runs, measure, title, WORDS[cost], Unit("", unit.factor), 1))
    alone = [v for v in runs.by_score if len(runs.of(v)) == 1]
    if alone and len(runs.variants) > 1:
        which = "" if alone == runs.by_score else f": {listed(alone, most=len(alone))}"
        points.append(f"One seed cannot show who is ahead{which}.")
    unreached = [t for t in runs.targets if not _complete(runs, f"rounds_to_{t:g}")]
    if unreached:
        points.append(f"No algorithm reached {listed(map(scale.text, unreached))} in all its runs.")
    notes = []
    if any("±" in point for point in points):
        notes.append("± is the standard deviation over seeds.")
    if any("[" in point for point in points):
        notes.append("Brackets hold 95 % intervals over runs of the same seed; see How sure.")
    elif len({v for v in runs.variants if len(runs.of(v)) > 1}) > NAMED + 1:
        notes.append("How sure has the interval of each.")
    return [Points(tuple(filter(None, points))), *([Text(" ".join(notes))] if notes else [])]


def _hardest(runs: Runs) -> float | None:
    """Return the target that most algorithms reached in all their runs, the hardest of these."""
    counts = {t: len(_complete(runs, f"rounds_to_{t:g}")) for t in runs.targets}
    hardest = max(counts, key=lambda t: (counts[t], runs.scale.sign * t), default=None)
    return hardest if hardest is not None and counts[hardest] else None


def _complete(runs: Runs, column: str) -> dict[str, list[float]]:
    """Return the numbers of the algorithms that have one in each of their runs."""
    columns = {variant: runs.of(variant)[column] for variant in runs.by_score}
    return {v: [float(n) for n in s] for v, s in columns.items() if len(s) and not s.null_count()}


def _compared(runs: Runs, measure: Measure, title: str, words: str, unit: Unit, digits: int) -> str:
    """Return one sentence about the leader of a measure; empty if too few seeds can show one."""
    known = _complete(runs, measure.column)
    better = -1 if measure.ratio else runs.scale.sign  # fewer rounds, a better score
    order = sorted(known, key=lambda v: -better * sum(known[v]) / len(known[v]))
    values = {
        v: f"{spread([unit.factor * n for n in known[v]], digits)} {unit.name}".strip()
        for v in order
    }
    seeded = [v for v in order if len(known[v]) > 1]
    if len(order) == 1:
        one = " (one seed)" if not seeded else ""
        return f"{title}: {order[0]}, {values[order[0]]}{one}."
    if len(seeded) < 2:
        return ""
    brief = len(seeded) > NAMED + 1
    leader, groups = _leader(runs, measure, seeded, better, brief=brief)
    if not groups:
        return f"{title}: each is behind another."
    ahead, level, unclear = (listed(groups[w]) for w in ("ahead", "level", "not told apart"))
    parts = [f"{words} {ahead}"] if ahead else []
    parts += [f"is level with {level}"] if level else []
    parts += [f"is not told apart from {unclear}"] if unclear else []
    return f"{title}: {leader}, {values[leader]}, {'; '.join(parts)}."


def _leader(
    runs: Runs, measure: Measure, order: Sequence[str], better: int, *, brief: bool
) -> tuple[str, Mapping[Word, Sequence[str]]]:
    """Return the leader and the others by what is shown; no others if each is behind another.

    Each has its interval behind its name, unless the list is to be ``brief``.
    """
    kind = "ratio" if measure.ratio else "difference"
    for leader in order:
        groups: defaultdict[Word, list[str]] = defaultdict(list)
        for other in (v for v in order if v != leader):
            pair = interval(runs, leader, other, measure)
            group = groups[measure.word(pair, better)]
            prefix = "" if group else f"paired {kind} "  # only once in a list
            group.append(other if brief else f"{other} ({prefix}{measure.text(pair)})")
        if "behind" not in groups:
            return leader, groups
    return order[0], {}


def listed(words: Iterable[str], most: int = NAMED) -> str:
    """Return ``a, b and c``, or ``a, b, c and 4 more``."""
    every = list(words)
    shown, more = every[:most], len(every) - most
    shown += [f"{more} more"] if more > 0 else []
    return " and ".join(filter(None, (", ".join(shown[:-1]), *shown[-1:])))
