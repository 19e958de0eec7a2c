"""Who won a contest, by how much and how surely, and the ranks over all contests.

The winner has the best mean score over the seeds.  It is ahead of another where Student's interval
over the differences of the same seeds shows it (see :mod:`..report.pairs`), and level otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..report.in_short import listed
from ..report.pairs import Interval, Measure, final_of, interval
from ..report.runs import Runs
from ..results.comparison import scored
from ..results.order import best_first, ranks, shown
from .bracket import Stage, stages
from .file import Contest, Tournament

__all__ = ["Course", "Verdict", "course", "mean_ranks", "verdict"]


@dataclass(frozen=True)
class Course:
    """What a contest has come to: the stages that are done, and the next one if any is left."""

    contest: Contest
    done: tuple[Stage, ...]
    next: Stage | None
    last: int
    """The number of evaluations whose mean is a score."""

    @property
    def rungs(self) -> list[Stage]:
        """The rungs that are done."""
        return [stage for stage in self.done if stage.seed is None]

    @property
    def finals(self) -> list[Stage]:
        """The seeds that are done."""
        return [stage for stage in self.done if stage.seed is not None]

    def runs(self, contestants: Sequence[str], places: Sequence[str]) -> Runs:
        """Return the final runs of some contestants, if any, with all seeds that are done."""
        found = [run for stage in self.finals for c in contestants for run in stage.by.get(c, ())]
        return Runs.read(found, None, last=self.last, places=places)

    def leading(self) -> dict[str, str]:
        """Return the best validation score of each contestant at the newest rung, best first."""
        if not self.rungs:
            return {}
        stage = self.rungs[-1]
        scores, scale = stage.scores(self.last), stage.objective().scale
        own = {
            c: scores[best_first({run: scores[run] for run in by}, scale)[0]]
            for c, by in stage.by.items()
        }
        return {c: shown(own[c], scale) for c in best_first(own, scale)}


def course(contest: Contest, tournament: Tournament, base: Path) -> Course:
    """Return what a contest has come to, as its runs say."""
    found = list(stages(contest, tournament.rules, base))
    done = tuple(stage for stage in found if stage.done())
    return Course(
        contest, done, found[-1] if len(done) < len(found) else None, tournament.rules.last
    )


@dataclass(frozen=True)
class Verdict:
    """The winner of a contest, and its lead over each other."""

    winner: str
    score: str
    seeds: int
    measure: Measure
    ahead: Mapping[str, Interval | None]
    level: Mapping[str, Interval | None]

    def sentence(self) -> str:
        """Return who won, by how much, and how sure that is."""
        words = f"{self.winner}, {self.score}"
        parts = [self._told("ahead of", self.ahead), self._told("level with", self.level)]
        if self.seeds == 1:
            return f"{words}, has the best score; one seed cannot tell who is ahead."
        if not self.level:
            return f"{words}, won: {parts[0]}."
        if not self.ahead:
            return f"nobody won: {words}, is {parts[1]}."
        return f"no single winner: {words}, is {parts[1]}; {parts[0]}."

    def _told(self, words: str, others: Mapping[str, Interval | None]) -> str:
        """Return ``ahead of b (+1.20 [+0.31, +2.09]), c (...) and 4 more``."""
        told = [f"{name} ({self.measure.text(one)})" for name, one in others.items()]
        return f"{words} {listed(told)}" if told else ""


def verdict(runs: Runs) -> Verdict:
    """Compare the best of a contest with all others, over the seeds that are done."""
    winner, *others = runs.by_score
    measure, unit = final_of(runs), runs.scale.unit if runs.heading else ""
    found = {other: interval(runs, winner, other, measure) for other in others}
    ahead = {o: one for o, one in found.items() if measure.shown(one) == runs.scale.sign}
    score = scored(runs.of(winner)["final"], runs.scale)
    return Verdict(
        winner,
        " ".join(filter(None, (score, unit, runs.measure))),
        len(runs.of(winner)),
        measure,
        ahead,
        {other: one for other, one in found.items() if other not in ahead},
    )


def mean_ranks(runs: Mapping[str, Runs], contestants: Sequence[str]) -> dict[str, dict[str, float]]:
    """Return each contestant's rank by contest, the mean over seeds, the best on average first.

    Those that were not in the finals of a contest share the ranks behind the finalists.
    """
    found: dict[str, dict[str, float]] = {}
    for contest, own in runs.items():
        by_seed: dict[tuple[int, int], dict[str, float | None]] = {}
        for variant, directory, final in own.ends.select("variant", "directory", "final").rows():
            by_seed.setdefault(own.seed(directory), dict.fromkeys(contestants))[variant] = final
        each = [ranks(scores, own.scale) for scores in by_seed.values()]
        for variant in contestants:
            found.setdefault(variant, {})[contest] = sum(r[variant] for r in each) / len(each)
    return {c: found[c] for c in sorted(found, key=lambda c: sum(found[c].values()))}
