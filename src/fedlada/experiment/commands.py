"""The commands of ``fedlada`` that work on experiments."""

from __future__ import annotations

import dataclasses
import fnmatch
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from .. import export as write_model
from ..errors import ExperimentError, FedladaError
from ..server.lock import DirectoryLock
from .attack_command import EXAMPLE as ATTACK_EXAMPLE, attack
from .config.cells import cells
from .config.reading import read
from .cost_command import EXAMPLE as COST_EXAMPLE, cost
from .run.directory import RunDirectory, runs_in
from .run.progress import Display
from .run.rounds import run as rounds_of
from .run.sweep import at_a_time, finish
from .tournament_command import EXAMPLE as TOURNAMENT_EXAMPLE, tournament

__all__ = ["app", "run"]

app = typer.Typer(
    help="Federated optimizers for PyTorch: run, sweep and compare experiments. --version prints"
    " the versions.",
    epilog="Example: fedlada sweep experiments/digits.toml; fedlada compare runs/digits",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
console = Console()
app.command(epilog=ATTACK_EXAMPLE)(attack)
app.command(epilog=COST_EXAMPLE)(cost)
app.command(epilog=TOURNAMENT_EXAMPLE)(tournament)

File = Annotated[Path, typer.Argument(help="the experiment's TOML file", show_default=False)]
Changes = Annotated[
    list[str] | None,
    typer.Argument(metavar="[KEY=VALUE]...", help="such as settings.lr=0.1", show_default=False),
]
Directories = Annotated[
    list[Path], typer.Argument(metavar="DIR...", help="of runs or sweeps", show_default=False)
]
Out = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="where results go; else runs/ and FILE's name"),
]
Targets = Annotated[
    list[float] | None, typer.Option(help="scores to reach; else those of the runs")
]
Rounds = Annotated[
    int | None,
    typer.Option(min=1, help="only up to this round, for runs of unequal length"),
]
Jobs = Annotated[
    int | None,
    typer.Option(min=1, help="runs at a time; else as many as cores, over engine.workers"),
]


def run(words: Sequence[str]) -> None:
    """Run a command given as words; an error that the user can fix is printed as a sentence."""
    try:
        app(args=list(words), prog_name="fedlada")
    except (FedladaError, ImportError) as error:
        sys.exit(f"fedlada: {error}")
    except OSError as error:
        sys.exit(
            f"fedlada: {error.filename or 'a file'} cannot be read or written ({error.strerror});"
            " give another path, or mend that one."
        )


@app.command("run", epilog="Example: fedlada run lenet.toml algorithm=fedcm settings.lr=0.1")
def run_(file: File, changes: Changes = None, out: Out = None) -> None:
    """Run one experiment, or resume it if it was stopped; KEY=VALUE overrides a key of FILE."""
    config = read(file, changes or ())
    directory = out or Path("runs") / config.name
    RunDirectory(directory).prepare(config)
    _one(directory)


@app.command(epilog="Example: fedlada sweep experiments/desk/tune.toml --jobs 2")
def sweep(
    file: File,
    changes: Changes = None,
    out: Out = None,
    jobs: Jobs = None,
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="PATTERN", help="runs whose name matches, as 'fedlada-*'"),
    ] = None,
) -> None:
    """Run all combinations of a file's sweep; resume stopped runs and skip finished ones."""
    patterns = only or ["*"]
    every = cells(file, changes or ())
    found = {
        name: config
        for name, config in every.items()
        if any(fnmatch.fnmatch(name, pattern) for pattern in patterns)
    }
    if not found:
        some = ", ".join(list(every)[:3]) + (", ..." if len(every) > 3 else "")
        raise ExperimentError(
            f"No run of {file} matches {' or '.join(map(repr, patterns))}; there are {some}."
        )
    base = out or Path("runs") / next(iter(found.values())).name
    for name, config in found.items():
        RunDirectory(base / name).prepare(config)
    _many([base / name for name in found], jobs=jobs, base=base)


@app.command(epilog="Example: fedlada resume runs/desk-tune --jobs 2")
def resume(
    directory: Annotated[Path, typer.Argument(help="of a run or a sweep", show_default=False)],
    jobs: Jobs = None,
) -> None:
    """Resume the unfinished runs in a directory."""
    found = runs_in(directory)
    if found == [directory]:
        _one(directory)
    else:
        _many(found, jobs=jobs, base=directory)


@app.command(epilog="Example: fedlada partition experiments/digits.toml data.concentration=0.1")
def partition(
    file: File,
    changes: Changes = None,
    clients: Annotated[int, typer.Option(help="how many to list")] = 20,
    draw: Annotated[
        Path | None, typer.Option(metavar="FILE.svg", help="draw all of them into this file")
    ] = None,
) -> None:
    """Show the partition: how many examples of each label every client holds."""
    from .results.holdings import first, holdings

    config = first(file, changes or ())
    console.print(holdings(config, clients=clients))
    if draw is not None:
        from .report.partition import drawn

        draw.write_text(drawn(config))
        console.print(f"written to {draw}", highlight=False, soft_wrap=True)


@app.command(epilog="Example: fedlada compare runs/desk-main --target 0.5 --target 0.6")
def compare(
    directories: Directories,
    target: Targets = None,
    rounds: Rounds = None,
) -> None:
    """Compare runs: best and final score, and rounds, bytes and seconds to each target."""
    from .results.comparison import comparison

    console.print(comparison(directories, targets=target, rounds=rounds))


@app.command(epilog="Example: fedlada report runs/digits --reference fedlada")
def report(
    directories: Directories,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="where it goes; else DIR/report")
    ] = None,
    target: Targets = None,
    reference: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="whom to compare all others with; else fedavg"),
    ] = None,
    rounds: Rounds = None,
) -> None:
    """Write a report with curves, tables and paired comparisons, as HTML and as Markdown."""
    from .report.report import HTML, MARKDOWN, report as write

    where = write(directories, out=out, targets=target, reference=reference, rounds=rounds)
    for name in (HTML, MARKDOWN):
        console.print(f"written to {where / name}", highlight=False, soft_wrap=True)


@app.command(epilog="Example: fedlada export runs/digits/fedlada-lr0.01-seed0 model.safetensors")
def export(
    directory: Annotated[Path, typer.Argument(help="of a run", show_default=False)],
    file: Annotated[Path, typer.Argument(help="to write", show_default=False)],
) -> None:
    """Write a run's newest model as a safetensors file, for any torch program."""
    if runs_in(directory) != [directory]:
        raise ExperimentError(f"{directory} holds several runs; give one of them.")
    saved = RunDirectory(directory).checkpoints()
    if not saved.rounds():
        raise ExperimentError(f"{directory} has no checkpoint; fedlada resume {directory} runs it.")
    write_model(saved, file)
    console.print(f"written to {file}", highlight=False, soft_wrap=True)


@app.command(epilog="Example: fedlada best runs/desk-tune")
def best(directory: Annotated[Path, typer.Argument(help="of a sweep")]) -> None:
    """Choose each algorithm's best settings by validation score and write DIR/best.toml."""
    from .results.tuning import choose

    console.print(choose(directory))
    console.print(f"written to {directory / 'best.toml'}", highlight=False, soft_wrap=True)


@app.command()
def algorithms() -> None:
    """List the algorithms, their parts and the bytes they send."""
    # Registered only for --help: fedlada.cli runs this command, because it needs only torch.


@app.command()
def doctor() -> None:
    """Check certificates, keys, connection, clock, versions, disk and model of a deployment."""
    # Registered only for --help, too: a node has no more than it needs.


def _one(directory: Path) -> None:
    if RunDirectory(directory).finished():
        console.print(f"{directory} is finished", highlight=False, soft_wrap=True)
        return
    with _resumable(directory), Display(console, [directory]) as display:
        for record in rounds_of(directory):
            display.show(directory, dataclasses.asdict(record))
    _next(directory)


def _many(found: Sequence[Path], *, jobs: int | None, base: Path) -> None:
    left = [directory for directory in found if not RunDirectory(directory).finished()]
    console.print(
        f"{len(found)} runs in {base}, {len(left)} to do", highlight=False, soft_wrap=True
    )
    if not left:
        _next(base)
        return
    number, crowded = at_a_time(left, jobs)
    if crowded:
        console.print(crowded, highlight=False, soft_wrap=True)
    alone = DirectoryLock(base, name="sweep.lock").held()
    with alone, _resumable(base), Display(console, found) as display:
        standing = finish(left, jobs=number, watch=display.watch)
    if standing.failed:
        for directory in standing.failed:
            log = RunDirectory(directory).log_file
            *_, last = log.read_text().splitlines() or ["no output"]
            console.print(
                f"{directory.name}: {last}", highlight=False, markup=False, soft_wrap=True
            )
        raise ExperimentError(
            f"{len(standing.failed)} of {len(found)} runs failed, see their log.txt;"
            f" the others are finished. fedlada resume {base} tries again."
        )
    _next(base)


def _next(directory: Path) -> None:
    """Say what to do with results."""
    console.print(
        f"done; fedlada compare {directory} prints a table, fedlada report {directory} writes a"
        " page with curves",
        highlight=False,
        soft_wrap=True,
        markup=False,
    )


@contextmanager
def _resumable(directory: Path) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        console.print(f"stopped; go on with: fedlada resume {directory}", soft_wrap=True)
        raise typer.Exit(130) from None
