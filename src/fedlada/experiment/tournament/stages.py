"""The stages of a contest, what its runs have shown so far, and who won it.

A tournament stores nothing but its runs: their records say which stage is done, which tries
continue and what is left.

``PROBLEM/tries/NAME``   a run with the tuning seed, up to the rung at which it was dropped
``PROBLEM/finals/NAME``  a run of a contestant's best settings with one of the seeds
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import polars as pl

from ...training.objective import Objective
from ..config.experiment import Experiment
from ..report.pairs import final_of, holm, interval
from ..report.runs import Runs
from ..report.summary import listed
from ..results.frames import configurations, frame, judged
from ..results.scores import best_first, ranks, scored, shown
from ..results.tuning import edges
from ..run.directory import RunDirectory
from .file import Contest, Rules, Tournament, changed

__all__ = [
    *("FINALS", "TRIES", "Course", "Stage", "Verdict"),
    *("course", "mean_ranks", "stages", "verdict"),
]

TRIES, FINALS = "tries", "finals"
QUIET = 0.1


@dataclass(frozen=True)
class Stage:
    """Runs that must all reach one round before any continues: a rung, or a seed of the finals."""

    contest: str
    title: str
    rounds: int
    runs: Mapping[Path, Experiment]
    seed: int | None = None
    """The seed, if it is a stage of the finals."""

    @property
    def by(self) -> dict[str, list[Path]]:
        """The runs of each contestant that has any."""
        names = dict.fromkeys(config.label for config in self.runs.values())
        return {c: [run for run in self.runs if self.runs[run].label == c] for c in names}

    def left(self) -> list[Path]:
        """Return the runs that have not reached the round."""
        return [run for run in self.runs if RunDirectory(run).round < self.rounds]

    def prepare(self) -> None:
        """Write the configurations; a directory that holds another run is an error."""
        for run, config in self.runs.items():
            whole = changed(config, federation={"rounds": self.rounds})
            RunDirectory(run).prepare(whole.at_once_where_faster())

    def scores(self, last: int, until: Mapping[str, int] | None = None) -> dict[Path, float | None]:
        """Return the score of each run at the round; None if it diverged before.

        ``until`` has an earlier round for each contestant; a run without a round has no score.
        """
        score = pl.col("score")
        mean = pl.when(score.last().is_not_null()).then(score.drop_nulls().tail(last).mean())
        data = frame(list(self.runs), rounds=self.rounds)
        if until is not None:
            data = data.filter(pl.col("round") <= pl.col("title").replace_strict(until))
        known = dict(data.group_by("directory").agg(mean).rows())
        return {run: known.get(str(run)) for run in self.runs}

    def seconds(self) -> dict[str, float]:
        """Return the seconds of a round of each contestant, the tenth percentile of all rounds.

        Other programs on the machine make rounds longer, hardly ever all of them.
        """
        data = frame(list(self.runs), rounds=self.rounds).group_by("title")
        return dict(data.agg(pl.col("seconds").quantile(QUIET, "nearest")).rows())

    def objective(self) -> Objective:
        """Return the objective by which the runs are judged."""
        first = [next(iter(self.runs))]
        return judged(configurations(first), frame(first))

    def best(
        self, last: int, until: Mapping[str, int] | None = None
    ) -> dict[str, tuple[Path, float | None]]:
        """Return the best run of each contestant and its score, the best first."""
        scores = self.scores(last, until)
        order = best_first(scores, self.objective().scale)
        return {
            self.runs[run].label: (run, scores[run]) for run in _first(order, self.runs, each=1)
        }


def stages(contest: Contest, rules: Rules, base: Path) -> Iterator[Stage]:
    """Yield the stages of a contest; the next is known when the one before is done.

    Iteration ends after a stage that is not done when the next one is asked for, and before finals
    that the rules refuse.
    """
    where, rungs = base / contest.name, contest.rungs(rules)
    runs = {
        where / TRIES / name: contest.seeded(config, rules.tuning_seed)
        for tries in contest.tries.values()
        for name, config in tries.items()
    }
    order = [*runs]
    for number, (rounds, each) in enumerate(rungs, 1):
        staying = {run: runs[run] for run in _first(order, runs, each=each)}
        stage = Stage(contest.name, f"rung {number} of {len(rungs)}", rounds, staying)
        yield stage
        if stage.left():
            return
        order = best_first(stage.scores(rules.last), stage.objective().scale)
    best = stage.best(rules.last)
    if rules.edges == "refuse" and any(_at_edges(contest, best).values()):
        return
    chosen = rules.chosen([*best])
    finalists = [best[c][0] for c in contest.tries if c in chosen]
    for seed in rules.seeds:
        finals = {
            where / FINALS / f"{run.name}-seed{seed}": contest.seeded(
                runs[run], seed, evaluate={"split": "test"}
            )
            for run in finalists
        }
        stage = Stage(contest.name, f"seed {seed}", contest.rounds, finals, seed)
        yield stage
        if stage.left():
            return


def _at_edges(contest: Contest, best: Mapping[str, tuple[Path, float | None]]) -> dict[Path, str]:
    """Return each contestant's chosen try, and its numbers at the edge of those tried."""
    return {
        run: edges(contest.tries[c][run.name], [*contest.tries[c].values()])
        for c, (run, _) in best.items()
    }


def _first(order: Iterable[Path], runs: Mapping[Path, Experiment], *, each: int) -> list[Path]:
    """Return the first ``each`` runs of every contestant, in their order."""
    seen: Counter[str] = Counter()
    first = []
    for run in order:
        seen[runs[run].label] += 1
        if seen[runs[run].label] <= each:
            first.append(run)
    return first


@dataclass(frozen=True)
class Course:
    """The stages of a contest that are done, and the next one if any is left."""

    contest: Contest
    done: tuple[Stage, ...]
    next: Stage | None
    last: int
    """The number of evaluations whose mean is the score of a try."""
    last_in_finals: int
    """The number of evaluations whose mean is the score of a final."""

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
        runs = [run for stage in self.finals for c in contestants for run in stage.by.get(c, ())]
        return Runs.read(runs, None, last=self.last_in_finals, places=places)

    def leading(self) -> dict[str, str]:
        """Return the best validation score of each contestant at the newest rung, best first."""
        if not self.rungs:
            return {}
        stage = self.rungs[-1]
        scale = stage.objective().scale
        return {c: shown(score, scale) for c, (_, score) in stage.best(self.last).items()}

    @property
    def ranked(self) -> list[Stage]:
        """The last stages in which all contestants ran: the finals, else the newest rung."""
        whole = [stage for stage in self.finals if len(stage.by) == len(self.contest.tries)]
        return whole or self.rungs[-1:]

    def ranks(self, *, equal_compute: bool = False) -> dict[str, float]:
        """Return the mean rank of each contestant over the ranked stages.

        At equal compute all stop when the one with the fastest rounds has done all of its rounds.
        """
        each = []
        for stage in self.ranked:
            until = self.affordable(stage.rounds) if equal_compute else None
            last = self.last if stage.seed is None else self.last_in_finals
            scores = {c: score for c, (_, score) in stage.best(last, until).items()}
            each.append(ranks(scores, stage.objective().scale))
        return {c: sum(one[c] for one in each) / len(each) for c in self.contest.tries}

    @cached_property
    def costs(self) -> dict[str, float]:
        """The time of each contestant's rounds, divided by that of the fastest contestant's."""
        times = [stage.seconds() for stage in self.ranked]
        means = {c: sum(time[c] for time in times) / len(times) for c in self.contest.tries}
        return {c: mean / min(means.values()) for c, mean in means.items()}

    def affordable(self, rounds: int) -> dict[str, int]:
        """Return the last evaluated round of each contestant in the time of the fastest one."""
        every = self.contest.every
        return {
            c: rounds if cost == 1 else every * math.floor(rounds / cost / every)
            for c, cost in self.costs.items()
        }

    @property
    def refused(self) -> bool:
        """Whether the rules refuse the finals, because of chosen numbers at an edge."""
        return self.next is None and not self.finals

    def chosen(self) -> dict[Path, str]:
        """Return the chosen try of each contestant, and its numbers at the edge of those tried.

        They are known once the last rung is done; a better setting may lie beyond the edge.
        """
        if not self.rungs or (self.next is not None and self.next.seed is None):
            return {}
        return _at_edges(self.contest, self.rungs[-1].best(self.last))

    def edges(self) -> str:
        """Return which chosen settings are the lowest or highest of those tried, as text."""
        runs = self.rungs[-1].runs if self.rungs else {}
        return ", ".join(f"{runs[run].label} {at}" for run, at in self.chosen().items() if at)


def course(contest: Contest, tournament: Tournament, base: Path) -> Course:
    """Return the stages of a contest that its runs have completed, and the next."""
    *done, newest = stages(contest, tournament.rules, base)
    last, in_finals = tournament.rules.last, contest.last_in_finals(tournament.rules)
    if newest.left():
        return Course(contest, tuple(done), newest, last, in_finals)
    return Course(contest, (*done, newest), None, last, in_finals)


def mean_ranks(
    courses: Sequence[Course], *, equal_compute: bool = False
) -> dict[str, dict[str, float]]:
    """Return each contestant's rank by contest, the best on average first."""
    each = {
        one.contest.name: one.ranks(equal_compute=equal_compute) for one in courses if one.rungs
    }
    table = {c: {name: rank[c] for name, rank in each.items()} for c in courses[0].contest.tries}
    return dict(sorted(table.items(), key=lambda row: sum(row[1].values())))


@dataclass(frozen=True)
class Verdict:
    """The contestant with the best mean over the seeds, and its lead over each other.

    Whether it is ahead of another, level with it or not told apart from it is what Student's
    interval over the differences of the same seeds shows (see :mod:`..report.pairs`).
    """

    winner: str
    level: Mapping[str, str]
    """Its lead over those that it is level with."""
    unclear: Mapping[str, str]
    """Its lead over those that the seeds do not tell from it."""
    sentence: str
    """Who won, by how much, and how sure that is."""


def verdict(runs: Runs) -> Verdict:
    """Compare the best of a contest with all others, over the seeds that are done."""
    winner, *others = runs.by_score
    measure, sign = final_of(runs), runs.scale.sign
    leads = {other: interval(runs, winner, other, measure) for other in others}
    words = {other: measure.word(lead, sign) for other, lead in leads.items()}
    ahead, level, unclear = (
        {other: measure.text(leads[other]) for other in others if words[other] == word}
        for word in ("ahead", "level", "not told apart")
    )
    score = (scored(runs.of(winner)["final"], runs.scale), runs.heading and runs.scale.unit)
    first = " ".join(filter(None, (f"{winner},", *score, runs.measure)))
    if len(runs.of(winner)) == 1:
        sentence = f"{first}, has the best score; one seed cannot tell who is ahead."
    else:
        groups = {"ahead of": ahead, "level with": level, "not told apart from": unclear}
        told = "; ".join(f"{word} {_listed(group)}" for word, group in groups.items() if group)
        sentence = f"{first}, won: {told}."
        if level or unclear:
            sentence = f"{'no single winner' if ahead else 'nobody won'}: {first}, is {told}."
        if ahead:
            left = holm(leads.values())
            sentence += f" Holm's correction leaves {left} of its {len(ahead)} leads."
    return Verdict(winner, level, unclear, sentence)


def _listed(leads: Mapping[str, str]) -> str:
    return listed([f"{other} ({lead})" for other, lead in leads.items()])
