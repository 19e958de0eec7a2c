"""Runs the stages of a tournament one after the other, until all are done or the time is up."""

from __future__ import annotations

import time
from collections.abc import Iterable

from rich.console import Console

from ...errors import ExperimentError
from ..run.directory import RunDirectory
from ..run.progress import Display
from ..run.sweep import Standing, at_a_time, finish
from .bracket import Stage

__all__ = ["TimeUp", "play"]


class TimeUp(Exception):
    """The hours are over."""


def play(
    agenda: Iterable[Stage], *, jobs: int | None, until: float | None, console: Console
) -> None:
    """Finish every stage; raise TimeUp at the time ``until`` of the monotonic clock.

    Runs that are stopped go on from their checkpoints when they are asked for again.
    """
    for stage in agenda:
        left = stage.prepare()
        if not left:
            continue
        _check(until)
        _say(
            console,
            f"{stage.contest}, {stage.title}: {len(left)} of {len(stage.runs)} runs to round"
            f" {stage.rounds}",
        )
        number, crowded = at_a_time(left, jobs)
        if crowded:
            _say(console, crowded)
        with Display(console, list(stage.runs)) as display:

            def watch(standing: Standing, display: Display = display) -> None:
                display.watch(standing)
                _check(until)

            finish(left, jobs=number, watch=watch)
        _whole(stage, console)


def _check(until: float | None) -> None:
    if until is not None and time.monotonic() >= until:
        raise TimeUp


def _whole(stage: Stage, console: Console) -> None:
    """Raise an error if a run did not reach the round."""
    short = stage.prepare()
    if not short:
        return
    for run in short:
        log = RunDirectory(run).log_file
        *_, last = log.read_text().splitlines() or ["no output"]
        _say(console, f"{run.name}: {last}")
    raise ExperimentError(
        f"{len(short)} of {len(stage.runs)} runs of {stage.contest}, {stage.title}, failed, see"
        " their log.txt; a stage counts only when it is whole. The same command tries again."
    )


def _say(console: Console, text: str) -> None:
    console.print(text, soft_wrap=True, highlight=False, markup=False)
