"""``fedlada tournament``: optimizers with equal tries on several problems, within some hours."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from ..server.lock import DirectoryLock
from .run.sweep import CORES
from .tournament.bracket import agenda
from .tournament.file import Tournament, read_tournament
from .tournament.plan import hours as hours_left, load, plan
from .tournament.work import TimeUp, play

__all__ = ["EXAMPLE", "tournament"]

EXAMPLE = (
    "Example: fedlada tournament experiments/tournament/tournament.toml --hours 8 --jobs 2;"
    " given again, it goes on"
)
console = Console()


def tournament(
    file: Annotated[Path, typer.Argument(help="the tournament's TOML file", show_default=False)],
    changes: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[KEY=VALUE]...", help="such as rules.seeds=[0,1]", show_default=False
        ),
    ] = None,
    hours: Annotated[
        float | None, typer.Option(min=0, help="stop after so many; else when all is done")
    ] = None,
    plan_only: Annotated[bool, typer.Option("--plan", help="print the plan, run nothing")] = False,
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="PATTERN", help="problems whose name matches, as 'cifar*'"),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="else runs/ and the tournament's name")
    ] = None,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="runs at a time; else as many as cores")
    ] = None,
) -> None:
    """Compare optimizers fairly: equal tries, halved on validation data, then seeds on test data.

    Everybody has the same number of settings to try on every problem. Settings that are behind
    at a rung get no more rounds; the best of each contestant then runs with several seeds.
    When the hours are over, the report is about all stages that are whole; the same command
    goes on. KEY=VALUE overrides a key of FILE.
    """
    began = time.monotonic()
    found = read_tournament(file, changes or (), only=only or ("*",))
    base = out or Path("runs") / found.name
    if plan_only or hours == 0:
        _plan(found, base, jobs)
        return
    from .report.figures import styled

    with styled():  # raises an error at once if matplotlib is missing
        pass
    with DirectoryLock(base, name="tournament.lock").held():
        _plan(found, base, jobs)
        until = None if hours is None else began + 3600 * hours
        try:
            play(agenda(found, base), jobs=jobs, until=until, console=console)
        except TimeUp:
            _say(f"the {hours:g} hours are over; the same command goes on")
        except KeyboardInterrupt:
            _say("stopped; the same command goes on")
            raise typer.Exit(130) from None
        _tell(found, base, file, changes or [])


def _plan(found: Tournament, base: Path, jobs: int | None) -> None:
    loads = [load(contest, found.rules, base) for contest in found.contests]
    console.print(plan(found, loads, jobs=jobs or CORES))
    if hours_left(loads, jobs or CORES) is None:
        _say("hours are known once a problem has run a round")


def _tell(found: Tournament, base: Path, file: Path, changes: list[str]) -> None:
    """Print what was found, and write the report."""
    from .tournament.page import left, repeat, tournament_page, verdicts
    from .tournament.verdict import course, mean_ranks

    courses = [course(contest, found, base) for contest in found.contests]
    if not any(one.done for one in courses):
        _say("no stage is whole yet, so there is nothing to report")
        return
    told = verdicts(courses, found.contestants)
    for name, (_, result) in told.items():
        _say(f"{name}: {result.sentence()}")
    if len(told) > 1:
        table = mean_ranks({name: runs for name, (runs, _) in told.items()}, found.contestants)
        means = [f"{c} {sum(own.values()) / len(own):.2f}" for c, own in table.items()]
        _say(f"mean ranks: {', '.join(means)}")
    for sentence in left(courses):
        _say(sentence)
    command = repeat(file, changes, base)
    written, *_ = tournament_page(found, courses, file=file, out=base / "report", command=command)
    _say(f"written to {written}")


def _say(text: str) -> None:
    console.print(text, soft_wrap=True, highlight=False, markup=False)
