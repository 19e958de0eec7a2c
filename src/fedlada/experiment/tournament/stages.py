"""The stages of a contest, what its runs have shown so far, and who won it.

A tournament stores nothing but its runs: their records say which stage is done, which tries
continue and what is left.

``PROBLEM/tries/NAME``   a run with the tuning seed, up to the rung at which it was dropped
``PROBLEM/finals/NAME``  a run of a contestant's best settings with one of the seeds
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from ...training.objective import Objective
from ..config.experiment import Experiment
from ..report.pairs import final_of, interval
from ..report.runs import Runs
from ..report.summary import listed
from ..results.frames import configurations, frame, judged
from ..results.scores import best_first, ranks, scored, shown
from ..results.tuning import edges
from ..run.directory import RunDirectory
from .file import Contest, Rules, Tournament

__all__ = [
    *("FINALS", "TRIES", "Course", "Stage", "Verdict"),
    *("course", "mean_ranks", "stages", "verdict"),
]

TRIES, FINALS = "tries", "finals"


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
            whole = _with(config, federation={"rounds": self.rounds})
            RunDirectory(run).prepare(whole.at_once_if_faster())

    def scores(self, last: int) -> dict[Path, float | None]:
        """Return the score of each run at the round; None if it diverged before."""
        score = pl.col("score")
        mean = pl.when(score.last().is_not_null()).then(score.drop_nulls().tail(last).mean())
        data = frame(list(self.runs), rounds=self.rounds).group_by("directory").agg(mean)
        known = dict(data.rows())
        return {run: known[str(run)] for run in self.runs}

    def objective(self) -> Objective:
        """Return the objective by which the runs are judged."""
        first = [next(iter(self.runs))]
        return judged(configurations(first), frame(first))

    def best(self, last: int) -> dict[str, tuple[Path, float | None]]:
        """Return the best run of each contestant and its score, the best first."""
        scores = self.scores(last)
        order = best_first(scores, self.objective().scale)
        return {
            self.runs[run].label: (run, scores[run]) for run in _first(order, self.runs, each=1)
        }


def stages(contest: Contest, rules: Rules, base: Path) -> Iterator[Stage]:
    """Yield the stages of a contest; the next is known when the one before is done.

    Iteration ends after a stage that is not done when the next one is asked for.
    """
    where, rungs = base / contest.name, contest.rungs(rules)
    runs = {
        where / TRIES / name: _with(config, federation={"seed": rules.tuning_seed})
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
    finalists = [best[c][0] for c in contest.tries if c in rules.chosen([*best])]
    for seed in rules.seeds:
        finals = {
            where / FINALS / f"{run.name}-seed{seed}": _with(
                runs[run], federation={"seed": seed}, evaluate={"split": "test"}
            )
            for run in finalists
        }
        stage = Stage(contest.name, f"seed {seed}", contest.rounds, finals, seed)
        yield stage
        if stage.left():
            return


def _first(order: Iterable[Path], runs: Mapping[Path, Experiment], *, each: int) -> list[Path]:
    """Return the first ``each`` runs of every contestant, in their order."""
    seen: Counter[str] = Counter()
    first = []
    for run in order:
        seen[runs[run].label] += 1
        if seen[runs[run].label] <= each:
            first.append(run)
    return first


def _with(config: Experiment, **sections: Mapping[str, Any]) -> Experiment:
    """Return the configuration with other values of some keys."""
    changed = {
        name: getattr(config, name).model_copy(update=keys) for name, keys in sections.items()
    }
    return config.model_copy(update=changed)


@dataclass(frozen=True)
class Course:
    """The stages of a contest that are done, and the next one if any is left."""

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
        runs = [run for stage in self.finals for c in contestants for run in stage.by.get(c, ())]
        return Runs.read(runs, None, last=self.last, places=places)

    def leading(self) -> dict[str, str]:
        """Return the best validation score of each contestant at the newest rung, best first."""
        if not self.rungs:
            return {}
        stage = self.rungs[-1]
        scale = stage.objective().scale
        return {c: shown(score, scale) for c, (_, score) in stage.best(self.last).items()}

    def ranks(self) -> dict[str, float]:
        """Return the rank of each contestant in the last stages in which all of them ran.

        These are the finals (the mean over their seeds) if all are finalists, else the newest rung.
        """
        whole = [stage for stage in self.finals if len(stage.by) == len(self.contest.tries)]
        each = []
        for stage in whole or self.rungs[-1:]:
            scores = {c: score for c, (_, score) in stage.best(self.last).items()}
            each.append(ranks(scores, stage.objective().scale))
        return {c: sum(one[c] for one in each) / len(each) for c in self.contest.tries}

    def chosen(self) -> dict[Path, str]:
        """Return the chosen try of each contestant, and its numbers at the edge of those tried.

        They are known once the last rung is done; a better setting may lie beyond the edge.
        """
        if not self.rungs or (self.next is not None and self.next.seed is None):
            return {}
        tries, best = self.contest.tries, self.rungs[-1].best(self.last)
        return {
            run: edges(tries[contestant][run.name], [*tries[contestant].values()])
            for contestant, (run, _) in best.items()
        }

    def edges(self) -> str:
        """Return which chosen settings are the lowest or highest of those tried, as text."""
        runs = self.rungs[-1].runs if self.rungs else {}
        return ", ".join(f"{runs[run].label} {at}" for run, at in self.chosen().items() if at)


def course(contest: Contest, tournament: Tournament, base: Path) -> Course:
    """Return the stages of a contest that its runs have completed, and the next."""
    *done, newest = stages(contest, tournament.rules, base)
    if newest.left():
        return Course(contest, tuple(done), newest, tournament.rules.last)
    return Course(contest, (*done, newest), None, tournament.rules.last)


def mean_ranks(courses: Sequence[Course]) -> dict[str, dict[str, float]]:
    """Return each contestant's rank by contest, the best on average first."""
    each = {one.contest.name: one.ranks() for one in courses if one.rungs}
    table = {c: {name: rank[c] for name, rank in each.items()} for c in courses[0].contest.tries}
    return dict(sorted(table.items(), key=lambda row: sum(row[1].values())))


@dataclass(frozen=True)
class Verdict:
    """The contestant with the best mean over the seeds, and its lead over each other.

    It is ahead of another if Student's interval over the differences of the same seeds shows it
    (see :mod:`..report.pairs`), and level with it otherwise.
    """

    winner: str
    level: Mapping[str, str]
    sentence: str
    """Who won, by how much, and how sure that is."""


def verdict(runs: Runs) -> Verdict:
    """Compare the best of a contest with all others, over the seeds that are done."""
    winner, *others = runs.by_score
    measure, sign = final_of(runs), runs.scale.sign
    leads = {other: interval(runs, winner, other, measure) for other in others}
    text = {other: measure.text(lead) for other, lead in leads.items()}
    ahead = {other: text[other] for other in others if measure.shown(leads[other]) == sign}
    level = {other: text[other] for other in others if other not in ahead}
    score = (scored(runs.of(winner)["final"], runs.scale), runs.heading and runs.scale.unit)
    first = " ".join(filter(None, (f"{winner},", *score, runs.measure)))
    behind, equal = (
        listed([f"{other} ({lead})" for other, lead in told.items()]) for told in (ahead, level)
    )
    if len(runs.of(winner)) == 1:
        sentence = f"{first}, has the best score; one seed cannot tell who is ahead."
    elif not level:
        sentence = f"{first}, won: ahead of {behind}."
    elif not ahead:
        sentence = f"nobody won: {first}, is level with {equal}."
    else:
        sentence = f"no single winner: {first}, is level with {equal}; ahead of {behind}."
    return Verdict(winner, level, sentence)
