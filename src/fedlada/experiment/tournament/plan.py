"""The plan of a tournament: how many rounds there are, how many are done, and the hours left."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.table import Table

from ..run.directory import RunDirectory, runs_in
from .bracket import FINALS, TRIES, round_of
from .file import Contest, Tournament
from .rules import Rules

__all__ = ["Load", "hours", "load", "plan"]


@dataclass(frozen=True)
class Load:
    """The rounds of one contest, of all contestants together."""

    contest: str
    rungs: tuple[tuple[int, int], ...]
    """The round of each rung, and the tries of one contestant that run up to it."""
    tuning: int
    finals: int
    done: int
    seconds: float | None
    """The seconds of a round, the median over the newest round of every run; None before any."""

    @property
    def left(self) -> int:
        """The number of rounds to do."""
        return max(0, self.tuning + self.finals - self.done)


def load(contest: Contest, rules: Rules, base: Path) -> Load:
    """Return the rounds of a contest, and what its runs say so far."""
    rungs, tries, spent, before = [], contest.each, 0, 0
    rounds = rules.rounds(contest.rounds, every=contest.one.evaluate.every)
    for at in rounds:
        rungs.append((at, tries))
        spent, before = spent + tries * (at - before), at
        tries = rules.staying(tries, last=at == rounds[-1])
    everybody = len(contest.tries)
    folders = [base / contest.name / part for part in (TRIES, FINALS)]
    runs = [run for folder in folders if folder.exists() for run in runs_in(folder)]
    took = [float(r["seconds"]) for run in runs if (r := RunDirectory(run).last_record())]
    return Load(
        contest=contest.name,
        rungs=tuple(rungs),
        tuning=everybody * spent,
        finals=rules.in_finals(everybody) * len(rules.seeds) * contest.rounds,
        done=sum(map(round_of, runs)),
        seconds=statistics.median(took) if took else None,
    )


def hours(loads: Sequence[Load], jobs: int) -> float | None:
    """Return the hours that the rest takes, without evaluation; None if a rate is unknown."""
    left = [one for one in loads if one.left]
    if any(one.seconds is None for one in left):
        return None
    return sum(one.left * (one.seconds or 0.0) for one in left) / (3600 * jobs)


def plan(tournament: Tournament, loads: Sequence[Load], *, jobs: int) -> Table:
    """Return the plan as a table, one row per problem."""
    rules, everybody = tournament.rules, len(tournament.contestants)
    table = Table(
        title=f"{tournament.name}: {everybody} contestants, {tournament.contests[0].each} tries"
        f" each, then {len(rules.seeds)} seed{'s' * (len(rules.seeds) > 1)} of the best"
        + f" for {rules.in_finals(everybody)} of them"
        * bool(rules.finalists),
        title_justify="left",
        title_style="bold",
        box=SIMPLE_HEAD,
    )
    for name in (
        "problem",
        "tries to round",
        "finals",
        "rounds",
        "done",
        "s a round",
        "hours left",
    ):
        table.add_column(name, justify="left" if name in ("problem", "tries to round") else "right")
    for one, contest in zip(loads, tournament.contests, strict=True):
        tried = ", ".join(f"{count} to {at}" for at, count in one.rungs)
        table.add_row(
            one.contest,
            tried,
            f"{len(rules.seeds)} x {contest.rounds}",
            f"{one.tuning + one.finals:,}",
            f"{one.done:,}",
            "–" if one.seconds is None else f"{one.seconds:.2g}",
            _hours(hours([one], jobs)),
        )
    if len(loads) > 1:
        total = sum(one.tuning + one.finals for one in loads)
        done = sum(one.done for one in loads)
        table.add_row("all", "", "", f"{total:,}", f"{done:,}", "", _hours(hours(loads, jobs)))
    return table


def _hours(number: float | None) -> str:
    return "–" if number is None else f"{number:.1f}"
