"""Progress of runs on a terminal or in a log file: rate, time left, score."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn

from ...errors import ExperimentError
from ...server.watch.progress import Pace
from ..config.experiment import Experiment
from .directory import RunDirectory
from .sweep import Standing, at_a_time, finish

__all__ = ["Display", "finish_shown", "score"]

REFRESH, REFRESH_LOG = 1.0, 60.0  # seconds between updates, on a terminal and elsewhere


class Display:
    """Shows the rounds of runs: as bars on a terminal, as occasional lines elsewhere."""

    def __init__(self, console: Console, runs: Sequence[Path]) -> None:
        self._console, self._live = console, console.is_terminal
        self._configs = {run: RunDirectory(run).config for run in runs}
        self._rounds = {run: config.federation.rounds for run, config in self._configs.items()}
        self._latest: dict[Path, Mapping[str, object]] = {
            run: RunDirectory(run).last_record() for run in runs
        }
        self._score = {
            run: score(run, self._configs[run], line) for run, line in self._latest.items()
        }
        self._first = self._done()
        self._speed = Pace(self._first)
        self._shown, self._reported = time.monotonic(), set[Path]()
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
        self._progress = Progress(*columns, TextColumn("{task.fields[text]}"), console=console)
        self._bars: dict[Path | None, TaskID] = {}

    def __enter__(self) -> Display:
        if self._live:
            self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None and len(self._rounds) > 1 and self._done() > self._first:
            self._all("")
        if self._live:
            self._progress.stop()

    def show(self, run: Path, line: Mapping[str, object]) -> None:
        """Show the newest record of the only run."""
        self._take(run, line)
        ended = self._round(run) == self._rounds[run]
        if self._live:
            self._bar(run, run.name, f"{self._score[run]}  {self._pace()}")
        elif ended or self._due(REFRESH):
            self._say(f"{self._standing(run)}  {self._pace()}")

    def watch(self, standing: Standing) -> None:
        """Show the state of a sweep; may be called many times a second."""
        for run in [*standing.done, *standing.failed]:
            if run not in self._reported:
                self._reported.add(run)
                self._take(run, RunDirectory(run).last_record())
                if run in self._bars:
                    self._progress.remove_task(self._bars.pop(run))
                failed = (
                    f"failed, see {RunDirectory(run).log_file}:"
                    if run in standing.failed
                    else "done"
                )
                self._say(f"{failed} {self._standing(run)}")
        if not self._due(REFRESH if self._live else REFRESH_LOG):
            return
        for run in standing.running:
            self._take(run, RunDirectory(run).last_record())
            if self._live:
                self._bar(run, run.name, self._score[run])
            else:
                self._say(self._standing(run))
        self._all(self._pace())

    def _all(self, text: str) -> None:
        """Show how many rounds of all runs are done."""
        if self._live:
            self._bar(None, "all", text)
        else:
            self._say(f"{self._done()}/{sum(self._rounds.values())} rounds  {text}".rstrip())

    def _take(self, run: Path, line: Mapping[str, object]) -> None:
        self._latest[run] = line
        self._score[run] = score(run, self._configs[run], line) or self._score[run]

    def _due(self, every: float) -> bool:
        due = time.monotonic() - self._shown > every
        self._shown = time.monotonic() if due else self._shown
        return due

    def _say(self, text: str) -> None:
        self._console.print(text, soft_wrap=True, highlight=False, markup=False)

    def _bar(self, run: Path | None, name: str, text: str) -> None:
        """Draw the bar of one run, or of all runs if ``run`` is None."""
        total = sum(self._rounds.values()) if run is None else self._rounds[run]
        done = self._done() if run is None else self._round(run)
        if run not in self._bars:
            self._bars[run] = self._progress.add_task(name, total=total, text="")
        self._progress.update(self._bars[run], completed=done, text=text)

    def _standing(self, run: Path) -> str:
        return f"{run.name}: round {self._round(run)}/{self._rounds[run]}  {self._score[run]}"

    def _round(self, run: Path) -> int:
        return int(str(self._latest[run].get("round", 0)))

    def _done(self) -> int:
        return sum(min(self._round(run), rounds) for run, rounds in self._rounds.items())

    def _pace(self) -> str:
        """Return the rate and the time left, as ``12.3 rounds/min, 1:02:03 left``."""
        done, total = self._done(), sum(self._rounds.values())
        rate = self._speed.rate(done)
        if not rate:
            return ""
        left = round(self._speed.left(done, total))
        clock = f"{left // 3600}:{left // 60 % 60:02}:{left % 60:02}"
        return f"{60 * rate:.1f} rounds/min, {clock} left"


def finish_shown(
    runs: Sequence[Path],
    left: Sequence[Path],
    title: str,
    *,
    jobs: int | None,
    console: Console,
    again: str,
    until: float = math.inf,
) -> None:
    """Finish the runs that are left, and show the progress of all; raise an error if some fail.

    The runs stop at the time ``until`` of the monotonic clock.  ``again`` ends the error: it says
    how to try again.
    """

    def say(text: str) -> None:
        console.print(text, soft_wrap=True, highlight=False, markup=False)

    say(f"{title}: {len(runs)} runs, {len(left)} to do")
    number, crowded = at_a_time(left, jobs)
    if crowded:
        say(crowded)
    with Display(console, runs) as display:
        failed = finish(left, jobs=number, watch=display.watch, until=until).failed
    for run in failed:
        *_, last = RunDirectory(run).log_file.read_text().splitlines() or ["no output"]
        say(f"{run.name}: {last}")
    if failed:
        raise ExperimentError(
            f"{len(failed)} of {len(runs)} runs failed, see their log.txt. {again}"
        )


def score(run: Path, config: Experiment, line: Mapping[str, object]) -> str:
    """Return ``test accuracy 51.2%`` from a JSON record; empty if the round was not evaluated."""
    metrics = line.get("metrics")
    if not isinstance(metrics, Mapping):
        return ""
    objective, split = RunDirectory(run).objective(config, metrics), config.evaluate.split
    value = metrics.get(f"{split}_{objective.score}")
    return "" if value is None else f"{split} {objective.title} {objective.scale.brief(value)}"
