"""Run the stages of a tournament within some hours, say how much is left, and report."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path

from rich.console import Console

from ..packed import unpack
from ..run.directory import RunDirectory
from ..run.progress import finish_shown
from .file import Tournament
from .page import tournament_page, unfinished, verdicts
from .stages import course, mean_ranks, stages

__all__ = ["plan", "play", "report", "unpacked"]


def play(
    tournament: Tournament, base: Path, *, jobs: int | None, until: float, console: Console
) -> bool:
    """Complete every stage in turn; return False at the time ``until`` of the monotonic clock.

    Runs that are stopped resume from their checkpoints when this is called again.
    """
    unpacked(tournament, base)
    contests = [stages(contest, tournament.rules, base) for contest in tournament.contests]
    for stage in (stage for turn in zip_longest(*contests) for stage in turn if stage):
        stage.prepare()
        if left := stage.left():
            title = f"{stage.contest}, {stage.title}, to round {stage.rounds}"
            again = "The same command tries again."
            finish_shown(
                [*stage.runs], left, title, jobs=jobs, until=until, console=console, again=again
            )
            if stage.left():
                return False
    return True


def unpacked(tournament: Tournament, base: Path) -> None:
    """Unpack the runs of the tournament's records that the directory does not have."""
    for contest in tournament.contests if tournament.records is not None else ():
        file = Path(f"{tournament.records}/{contest.name}.jsonl")
        if file.exists():
            unpack(file, base / contest.name, again=False)


def plan(tournament: Tournament, base: Path, *, jobs: int) -> Iterator[str]:
    """Yield a sentence for each problem: its rungs and rounds, and the hours left."""
    rules, everybody = tournament.rules, len(tournament.contestants)
    for contest in tournament.contests:
        rungs = contest.rungs(rules)
        finals = (stage for stage in stages(contest, rules, base) if stage.seed is not None)
        finalists = next((len(stage.runs) for stage in finals), rules.in_finals(everybody))
        rounds, before = finalists * len(rules.seeds) * contest.rounds, 0
        for at, tries in rungs:
            rounds, before = rounds + everybody * tries * (at - before), at
        runs = (RunDirectory(run.parent) for run in (base / contest.name).glob("*/*/config.toml"))
        newest = [record for run in runs if (record := run.last_record())]
        done, hours = sum(int(record["round"]) for record in newest), "unknown before a round"
        if newest:
            seconds = statistics.median(float(record["seconds"]) for record in newest)
            hours = f"{max(0, rounds - done) * seconds / 3600 / jobs:.1f}"
        yield (
            f"{contest.name}: {everybody} contestants with"
            f" {', '.join(f'{tries} tries to round {at}' for at, tries in rungs)}; then {finalists}"
            f" with {len(rules.seeds)} seeds to round {contest.rounds}. {done:,} of {rounds:,}"
            f" rounds are done; hours left: {hours}"
        )


def report(tournament: Tournament, base: Path, *, file: Path, command: str) -> Iterator[str]:
    """Write the report on all completed stages, and yield sentences about what they show."""
    courses = [course(contest, tournament, base) for contest in tournament.contests]
    if not any(one.done for one in courses):
        yield "no stage is complete yet, so there is nothing to report"
        return
    for name, (_, result) in verdicts(courses, tournament.contestants).items():
        yield f"{name}: {result.sentence}"
    for equal_compute, words in ((False, "mean ranks"), (True, "mean ranks at equal compute")):
        ranked = mean_ranks(courses, equal_compute=equal_compute).items()
        yield f"{words}: {', '.join(f'{c} {sum(r.values()) / len(r):.2f}' for c, r in ranked)}"
    for one in courses:
        if not one.refused and (edges := one.edges()):
            yield f"{one.contest.name}: chosen at the edge of those tried, so try beyond: {edges}"
    yield from unfinished(courses)
    page, *_ = tournament_page(tournament, courses, file=file, out=base / "report", command=command)
    yield f"written to {page}"
