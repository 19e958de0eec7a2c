"""The stages of a contest: what runs at each, and who goes on.

A tournament has no state of its own: its directory contains those of its runs, and what they
recorded says which stage is done, who stays and what is left.

``PROBLEM/tries/NAME``   a run with the tuning seed, as far as its settings stayed
``PROBLEM/finals/NAME``  a run of a contestant's best settings with one of the seeds
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ...client.objective import Objective
from ..config.experiment import Experiment
from ..results.frames import configurations, frame, judged, summary
from ..results.order import best_first
from ..run.directory import RunDirectory
from .file import Contest, Tournament
from .rules import Rules

__all__ = ["FINALS", "TRIES", "Stage", "agenda", "round_of", "stages"]

TRIES, FINALS = "tries", "finals"


@dataclass(frozen=True)
class Stage:
    """Runs that must all reach one round before any goes on: a rung, or a seed of the finals."""

    contest: str
    title: str
    rounds: int
    runs: Mapping[Path, Experiment]
    by: Mapping[str, Sequence[Path]]
    """The runs of each contestant that has any."""
    seed: int | None = None
    """The seed, if it is a stage of the finals."""

    def done(self) -> bool:
        """Tell whether all runs have reached the round."""
        return all(round_of(run) >= self.rounds for run in self.runs)

    def prepare(self) -> list[Path]:
        """Write the configurations, and return the runs that have not reached the round."""
        for run, config in self.runs.items():
            own = RunDirectory(run)
            far = own.config.federation.rounds if own.config_file.exists() else 0
            own.prepare(_to(config, rounds=max(self.rounds, far)))
        return [run for run in self.runs if round_of(run) < self.rounds]

    def scores(self, last: int) -> dict[Path, float | None]:
        """Return the score of each run at the round; None if it diverged before."""
        data = frame(list(self.runs), rounds=self.rounds)
        found = dict(summary(data, last=last).select("directory", "final").rows())
        at = dict(
            data.sort("round").group_by("directory").last().select("directory", "score").rows()
        )
        return {run: None if at.get(str(run)) is None else found[str(run)] for run in self.runs}

    def objective(self) -> Objective:
        """Return how the runs, of which some round was evaluated, are judged."""
        first = [next(iter(self.runs))]
        return judged(configurations(first), frame(first))


def stages(contest: Contest, rules: Rules, base: Path) -> Iterator[Stage]:
    """Yield the stages of a contest; the next is known when the one before is done.

    Iteration ends after a stage that is not done when the next one is asked for.
    """
    where = base / contest.name
    names = {c: list(tries) for c, tries in contest.tries.items()}
    rungs = rules.rounds(contest.rounds, every=contest.one.evaluate.every)
    for number, rounds in enumerate(rungs, 1):
        title = f"rung {number} of {len(rungs)}"
        by = {c: [where / TRIES / name for name in names[c]] for c in names}
        runs = {
            where / TRIES / name: _to(contest.tries[c][name], seed=rules.tuning_seed)
            for c in names
            for name in names[c]
        }
        stage = Stage(contest.name, title, rounds, runs, by)
        yield stage
        if not stage.done():
            return
        scores = stage.scores(rules.last)
        for c, own in by.items():
            order = best_first({run: scores[run] for run in own}, stage.objective().scale)
            stay = rules.staying(len(own), last=number == len(rungs))
            names[c] = [run.name for run in order[:stay]]
    best = {c: scores[where / TRIES / name] for c, (name,) in names.items()}
    chosen = rules.chosen(best_first(best, stage.objective().scale))
    names = {c: own for c, own in names.items() if c in chosen}
    for seed in rules.seeds:
        by = {c: [where / FINALS / f"{name}-seed{seed}"] for c, (name,) in names.items()}
        runs = {
            by[c][0]: _to(contest.tries[c][name], seed=seed, split="test")
            for c, (name,) in names.items()
        }
        stage = Stage(contest.name, f"seed {seed}", contest.rounds, runs, by, seed)
        yield stage
        if not stage.done():
            return


def agenda(tournament: Tournament, base: Path) -> Iterator[Stage]:
    """Yield the stages of all contests in turn; each must be done before the next is asked for."""
    going = [stages(contest, tournament.rules, base) for contest in tournament.contests]
    while going:
        for own in list(going):
            stage = next(own, None)
            if stage is None:
                going.remove(own)
            else:
                yield stage


def round_of(run: Path) -> int:
    """Return the newest round of a run, 0 if there is none."""
    return int(RunDirectory(run).last_record().get("round", 0))


def _to(
    config: Experiment,
    *,
    rounds: int | None = None,
    seed: int | None = None,
    split: str | None = None,
) -> Experiment:
    """Return the configuration with other rounds, another seed or another split."""
    federation = {"rounds": rounds, "seed": seed}
    changed = {key: value for key, value in federation.items() if value is not None}
    evaluate = {} if split is None else {"split": split}
    return config.model_copy(
        update={
            "federation": config.federation.model_copy(update=changed),
            "evaluate": config.evaluate.model_copy(update=evaluate),
        }
    )
