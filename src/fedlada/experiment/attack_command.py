"""``fedlada attack``: what attacks cost the federation of a file, under each defence."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from ..engines.attacks import ATTACKS
from ..engines.hostile import colluders_of
from ..errors import ExperimentError
from .config.experiment import Experiment
from .config.reading import read, table
from .run.attack import BASELINES, Cell, target_of
from .run.attack_directory import AttackDirectory, Line, Wanted, chosen, wanted
from .run.defences import DEFENCES
from .run.problem import participants

__all__ = ["EXAMPLE", "attack"]

EXAMPLE = (
    "Example: fedlada attack experiments/attacks/digits.toml --attacks scaling,sign-flip"
    " --defences default,centered-clipping --share 0.1 --share 0.2 --seeds 0,1,2"
)
console = Console()

Names = list[str] | None


def attack(
    file: Annotated[Path, typer.Argument(help="the experiment's TOML file", show_default=False)],
    changes: Annotated[
        Names,
        typer.Argument(metavar="[KEY=VALUE]...", help="such as settings.lr=0.1"),
    ] = None,
    attacks: Annotated[
        Names, typer.Option(metavar="NAMES", help=f"else all: {', '.join(ATTACKS)}")
    ] = None,
    defences: Annotated[
        Names, typer.Option(metavar="NAMES", help=f"else all: {', '.join(DEFENCES)}")
    ] = None,
    share: Annotated[
        list[float] | None, typer.Option(help="of the clients that collude; else 0.1")
    ] = None,
    seeds: Annotated[
        Names, typer.Option(metavar="NUMBERS", help="such as 0,1,2; else the file's own")
    ] = None,
    strengths: Annotated[
        Names,
        typer.Option(
            metavar="NUMBERS",
            help="to try, of which the worst counts, such as 1,2,5; else each attack's own",
        ),
    ] = None,
    rounds: Annotated[int | None, typer.Option(min=1, help="else as the file says")] = None,
    last: Annotated[
        int, typer.Option(min=1, help="a score is the mean of so many last evaluations")
    ] = 5,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="else runs/attack- and FILE's name")
    ] = None,
    jobs: Annotated[int, typer.Option("--jobs", "-j", min=1, help="processes at a time")] = (
        os.cpu_count() or 1
    ),
) -> None:
    """Attack a federation: colluding clients, many attacks, each defence, and the damage.

    Every attack under every defence is a run of its own. A stopped command goes on when it is
    given again. KEY=VALUE overrides a key of FILE.
    """
    config = _config(file, [*(changes or ()), *([f"federation.rounds={rounds}"] if rounds else ())])
    clients = participants(config)
    for one in share or [0.1]:
        colluders_of(clients, one)
    found = wanted(
        config,
        target_of(config),
        attacks=chosen(attacks or (), {**ATTACKS, **BASELINES}, "attack"),
        defences=chosen(defences or (), DEFENCES, "defence"),
        shares=list(dict.fromkeys(share or [0.1])),
        seeds=[int(n) for n in _numbers(seeds, "--seeds")] or [config.federation.seed],
        strengths=_numbers(strengths, "--strengths"),
    )
    directory = AttackDirectory(out or Path("runs") / f"attack-{config.name}")
    with directory.held():
        directory.prepare(config)
        _run(directory, found, jobs=jobs)
        _tell(directory, config, found, last)


def _config(file: Path, changes: list[str]) -> Experiment:
    if "sweep" in table(file):
        raise ExperimentError(
            f"{file} holds a sweep, many federations; an attack is on one: give a file without"
            " [sweep], such as experiments/attacks/digits.toml."
        )
    config = read(file, changes)
    if config.engine.name != "process":
        raise ExperimentError(
            f"engine.name is {config.engine.name!r}; attacks run in one process: add"
            " engine.name=process."
        )
    if config.engine.workers > 1:
        raise ExperimentError(
            f"engine.workers is {config.engine.workers}; each attack is one process: add"
            " engine.workers=1, and choose with --jobs how many run at a time."
        )
    objective = config.objective()
    if objective.scale.unit != "%":
        raise ExperimentError(
            f"data.task is {config.data.task!r}, which is judged by {objective.title}; what attacks"
            " cost is counted in points of a score in percent: give a file with such a task, such"
            " as classification."
        )
    return config


def _numbers(words: Names, option: str) -> list[float]:
    texts = [text.strip() for word in words or () for text in word.split(",") if text.strip()]
    try:
        numbers = [float(text) for text in texts]
    except ValueError:
        numbers = []
    valid = all(0 <= n < 1e18 and (option != "--seeds" or n == int(n)) for n in numbers)
    if len(numbers) < len(texts) or not valid:
        kind = "whole numbers such as 0,1,2" if option == "--seeds" else "numbers such as 1,2,5"
        raise ExperimentError(f"{option} is {', '.join(texts)!r}; give {kind}.")
    return list(dict.fromkeys(numbers))


def _run(directory: AttackDirectory, found: Wanted, *, jobs: int) -> None:
    done = directory.lines()
    total = sum(cell not in done for cell in found.cells)
    for name, why in found.skipped.items():
        _say(f"not applicable: {name}, {why}")
    _say(f"{len(found.cells)} cells in {directory.path}, {total} to do")
    began, count = time.monotonic(), 0

    def watch(cell: Cell, line: Line) -> None:
        nonlocal count
        count += 1
        rate = count / (time.monotonic() - began)
        left = round((total - count) / rate)
        clock = f"{left // 3600}:{left // 60 % 60:02}:{left % 60:02}"
        score = line["curve"][-1][1]
        told = "diverged" if score is None else f"{line['metric'].replace('_', ' ')} {score:.1%}"
        _say(f"{count}/{total} {cell}: {told}  {60 * rate:.2f} cells/min, {clock} left")

    try:
        directory.finish(found.cells, jobs=jobs, watch=watch)
    except KeyboardInterrupt:
        _say("stopped; the same command goes on")
        raise typer.Exit(130) from None


def _tell(directory: AttackDirectory, config: Experiment, found: Wanted, last: int) -> None:
    """Print the table and write the report."""
    from .report.attack import attack_report
    from .results.damage import as_csv, as_table, damages, worst

    lines = damages(directory.lines(), last=last)
    directory.rewrite(lines)
    result = worst(lines)
    console.print(as_table(result))
    (directory.path / "attacks.csv").write_text(as_csv(result))
    written = attack_report(result, config, skipped=found.skipped, out=directory.path, last=last)
    for path in (directory.path / "attacks.csv", *written):
        _say(f"written to {path}")


def _say(text: str) -> None:
    console.print(text, soft_wrap=True, highlight=False, markup=False)
