"""The commands of ``fedlada`` that work on experiments; each adds its options to a parser."""

from __future__ import annotations

import argparse
import dataclasses
import shlex
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from ..errors import ExperimentError
from ..server.saving.export import export as write_model
from ..server.saving.lock import DirectoryLock
from .config.cells import cells, first, matching
from .config.reading import read, table
from .packed import directory_of, pack as pack_runs
from .run.directory import RunDirectory, runs_in
from .run.execute import run as rounds_of
from .run.progress import Display, finish_shown
from .run.sweep import CORES

__all__ = [
    *("best", "compare", "export", "pack", "partition", "replay", "report", "resume", "run"),
    *("sweep", "tournament"),
]

Parser = argparse.ArgumentParser
console = Console()


def run(parser: Parser, words: Sequence[str]) -> None:
    """Run one experiment, or resume it if it was stopped."""
    parser.epilog = "Example: fedlada run lenet.toml algorithm=fedcm settings.lr=0.1"
    _takes_file(parser)
    _takes_out(parser)
    options = parser.parse_intermixed_args(words)
    config = read(options.file, options.changes)
    if not options.changes and not table(options.file):
        raise ExperimentError(
            f"{options.file} is empty, which means the default experiment, LeNet on CIFAR-10 for"
            f" {config.federation.rounds} rounds; write in it what you want to run, or, for just"
            f' that, name = "{config.name}".'
        )
    directory = options.out or Path("runs") / config.name
    RunDirectory(directory).prepare(config)
    _one(directory)


def sweep(parser: Parser, words: Sequence[str]) -> None:
    """Run all combinations of a file's sweep; resume stopped runs and skip finished ones."""
    parser.epilog = "Example: fedlada sweep experiments/desk/tune.toml --jobs 2"
    _takes_file(parser)
    _takes_out(parser)
    _takes_jobs(parser)
    _takes_only(parser, "runs")
    options = parser.parse_intermixed_args(words)
    every = cells(options.file, options.changes)
    names = matching(every, options.only or ["*"], options.file)
    base = options.out or Path("runs") / every[names[0]].name
    for name in names:
        RunDirectory(base / name).prepare(every[name].at_once_where_faster())
    _many([base / name for name in names], jobs=options.jobs, base=base)


def resume(parser: Parser, words: Sequence[str]) -> None:
    """Resume the unfinished runs in a directory."""
    parser.epilog = "Example: fedlada resume runs/desk-tune --jobs 2"
    parser.add_argument("directory", type=Path, metavar="DIR", help="directory of a run or a sweep")
    _takes_jobs(parser)
    options = parser.parse_args(words)
    found = runs_in(options.directory)
    if found == [options.directory]:
        _one(options.directory)
    else:
        _many(found, jobs=options.jobs, base=options.directory)


def tournament(parser: Parser, words: Sequence[str]) -> None:
    """Compare optimizers fairly: equal tries, halved on validation data, then seeds on test data.

    Every optimizer tries the same number of settings on every problem of FILE. Settings that are
    behind at a rung get no more rounds; the best of each optimizer then runs with several seeds.
    When the hours are over, the report covers all completed stages.
    """
    parser.epilog = (
        "Example: fedlada tournament experiments/tournament/digits.toml --hours 8; the same"
        " command resumes it"
    )
    _takes_file(parser)
    parser.add_argument("--hours", type=float, help="stop after this time (when all is done)")
    parser.add_argument("--plan", action="store_true", help="print the plan and run nothing")
    _takes_only(parser, "problems")
    _takes_out(parser)
    _takes_jobs(parser)
    options = parser.parse_intermixed_args(words)
    from .report.figures import styled
    from .tournament import play as work
    from .tournament.file import read_tournament

    hours, jobs = options.hours, options.jobs
    until = float("inf") if hours is None else time.monotonic() + 3600 * hours
    contests = read_tournament(options.file, options.changes, only=options.only or ("*",))
    base = options.out or Path("runs") / contests.name
    for sentence in work.plan(contests, base, jobs=jobs or CORES):
        _say(sentence)
    if options.plan or hours == 0:
        return
    again = ["fedlada", "tournament", str(options.file), *options.changes, "--out", str(base)]
    command = shlex.join(again)
    with styled():  # raises an error at once if matplotlib is missing
        pass
    with DirectoryLock(base, name="tournament.lock").held(), _resumable(command):
        if not work.play(contests, base, jobs=jobs, until=until, console=console):
            _say(f"the {hours:g} hours are over; to resume: {command}")
        for sentence in work.report(contests, base, file=options.file, command=command):
            _say(sentence)


def partition(parser: Parser, words: Sequence[str]) -> None:
    """Show the partition: how many examples of each label every client holds."""
    parser.epilog = "Example: fedlada partition experiments/digits.toml data.concentration=0.1"
    _takes_file(parser)
    parser.add_argument(
        "--only",
        metavar="PATTERN",
        help="of a sweep, the first run whose name matches, such as '*concentration0.1*' (the"
        " first of all)",
    )
    parser.add_argument(
        "--clients", type=int, default=20, metavar="N", help="how many to list (%(default)s)"
    )
    parser.add_argument("--draw", type=Path, metavar="FILE.svg", help="draw all clients there")
    options = parser.parse_intermixed_args(words)
    from .report.partition import holdings, partition_svg

    config = first(options.file, options.changes, only=options.only)
    console.print(holdings(config, clients=options.clients))
    if options.draw is not None:
        options.draw.write_text(partition_svg(config))
        _say(f"written to {options.draw}")


def compare(parser: Parser, words: Sequence[str]) -> None:
    """Compare runs: best and final score, and rounds, bytes and seconds to each target."""
    parser.epilog = "Example: fedlada compare runs/desk-main --target 0.5 --target 0.6"
    _takes_runs(parser)
    parser.add_argument("--latex", action="store_true", help="print the tables as LaTeX")
    options = parser.parse_intermixed_args(words)
    from .report.compare import as_latex, compared, on_terminal

    blocks = compared(options.directories, targets=options.target, rounds=options.rounds)
    if options.latex:
        print(as_latex(blocks))
    else:
        console.print(on_terminal(blocks))


def report(parser: Parser, words: Sequence[str]) -> None:
    """Write a report with curves, tables and paired comparisons, as HTML and as Markdown."""
    parser.epilog = "Example: fedlada report runs/digits --reference fedlada"
    _takes_runs(parser)
    parser.add_argument("--out", type=Path, metavar="DIR", help="where it goes (DIR/report)")
    parser.add_argument(
        "--reference", metavar="NAME", help="compare all others with this algorithm (fedavg)"
    )
    options = parser.parse_intermixed_args(words)
    from .report.report import HTML, MARKDOWN, report as write

    where = write(
        options.directories,
        out=options.out,
        targets=options.target,
        reference=options.reference,
        rounds=options.rounds,
    )
    for name in (HTML, MARKDOWN):
        _say(f"written to {where / name}")


def export(parser: Parser, words: Sequence[str]) -> None:
    """Write a run's newest model as a safetensors file, for any torch program."""
    parser.epilog = "Example: fedlada export runs/digits/fedlada-lr0.01-seed0 model.safetensors"
    parser.add_argument("directory", type=Path, metavar="DIR", help="directory of a run")
    parser.add_argument("file", type=Path, metavar="FILE", help="the safetensors file to write")
    options = parser.parse_args(words)
    directory = options.directory
    if runs_in(directory) != [directory]:
        raise ExperimentError(f"{directory} holds several runs; give one of them.")
    saved = RunDirectory(directory).checkpoints()
    if not saved.rounds():
        raise ExperimentError(f"{directory} has no checkpoint; fedlada resume {directory} runs it.")
    with warnings.catch_warnings(record=True) as notes:
        warnings.simplefilter("always")
        write_model(saved, options.file)
    _say("; ".join([f"written to {options.file}", *(str(note.message) for note in notes)]))


def replay(parser: Parser, words: Sequence[str]) -> None:
    """Train a run with late replies again, from its records, and compare the bits."""
    parser.epilog = "Example: fedlada replay runs/late"
    parser.add_argument("directory", type=Path, metavar="DIR", help="directory of a run")
    directory = parser.parse_args(words).directory
    if runs_in(directory) != [directory]:
        raise ExperimentError(f"{directory} holds several runs; give one of them.")
    from .run.replay import replayed

    rounds, other = replayed(directory)
    if other:
        raise ExperimentError(
            f"training the {rounds} rounds of {directory} again gives other bits in"
            f" {', '.join(other)}: its records or checkpoints were changed, a client lied, or this"
            " machine has other versions, threads or another processor than the run had."
        )
    _say(f"training the {rounds} rounds of {directory} again gives the same bits")


def best(parser: Parser, words: Sequence[str]) -> None:
    """Choose each algorithm's best settings by validation score and write DIR/best.toml."""
    parser.epilog = "Example: fedlada best runs/desk-tune"
    parser.add_argument(
        "directory", type=Path, metavar="DIR", help="directory of a sweep, or packed runs"
    )
    directory = parser.parse_args(words).directory
    from .results.tuning import BEST, choose

    console.print(choose(directory))
    _say(f"written to {directory_of(directory) / BEST}")


def pack(parser: Parser, words: Sequence[str]) -> None:
    """Pack the runs that have ended into one text file; compare, report and best read it."""
    parser.epilog = "Example: fedlada pack runs/digits digits.jsonl"
    parser.add_argument("directory", type=Path, metavar="DIR", help="directory of a run or a sweep")
    parser.add_argument("file", type=Path, metavar="FILE", help="to write, or to add to")
    options = parser.parse_args(words)
    packed = pack_runs(options.directory, options.file)
    _say(f"{len(packed)} runs packed into {options.file}")


def _takes_file(parser: Parser) -> None:
    parser.add_argument("file", type=Path, metavar="FILE", help="the TOML file of the experiment")
    parser.add_argument(
        "changes",
        nargs="*",
        metavar="KEY=VALUE",
        help="a key of FILE and its new value, such as settings.lr=0.1",
    )


def _takes_runs(parser: Parser) -> None:
    parser.add_argument(
        "directories", nargs="+", type=Path, metavar="DIR", help="directory of a run or a sweep"
    )
    parser.add_argument(
        "--target",
        action="append",
        type=float,
        metavar="SCORE",
        help="a score to reach; may be repeated (evaluate.targets of the runs)",
    )
    parser.add_argument(
        "--rounds", type=_count, metavar="N", help="ignore later rounds than this, if runs differ"
    )


def _takes_only(parser: Parser, what: str) -> None:
    parser.add_argument(
        "--only",
        action="append",
        metavar="PATTERN",
        help=f"{what} whose name matches, such as 'fedlada-*'; may be repeated (all)",
    )


def _takes_out(parser: Parser) -> None:
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="where results go (runs/ and the name in FILE)"
    )


def _takes_jobs(parser: Parser) -> None:
    parser.add_argument(
        "--jobs",
        type=_count,
        metavar="N",
        help="runs at a time (the number of cores, divided by engine.workers)",
    )


def _count(text: str) -> int:
    """Read a whole number above 0."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} must be a whole number, 1 or more")
    return int(text)


def _say(text: str) -> None:
    console.print(text, soft_wrap=True, highlight=False, markup=False)


def _one(directory: Path) -> None:
    if RunDirectory(directory).finished():
        _say(f"{directory} is finished")
        return
    with (
        _resumable(shlex.join(["fedlada", "resume", str(directory)])),
        Display(console, [directory]) as display,
    ):
        for record in rounds_of(directory):
            display.show(directory, dataclasses.asdict(record))
    _next(directory)


def _many(runs: Sequence[Path], *, jobs: int | None, base: Path) -> None:
    left = [run for run in runs if not RunDirectory(run).finished()]
    if left:
        again = shlex.join(["fedlada", "resume", str(base)])
        with DirectoryLock(base, name="sweep.lock").held(), _resumable(again):
            finish_shown(
                runs, left, str(base), jobs=jobs, console=console, again=f"To try again: {again}"
            )
    _next(base)


def _next(directory: Path) -> None:
    """Say what to do with results."""
    path = shlex.quote(str(directory))
    _say(
        f"done; fedlada compare {path} prints a table, fedlada report {path} writes a page with"
        " curves"
    )


@contextmanager
def _resumable(command: str) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        console.print(f"stopped; to resume: {command}", soft_wrap=True, highlight=False)
        sys.exit(130)
