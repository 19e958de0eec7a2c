"""What the benchmarks share: side by side timing, and how a figure is reported."""

import argparse
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch


def parser(description: str) -> argparse.ArgumentParser:
    """The options every benchmark has."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument(
        "--check", action="store_true", help="exit 0 only where the goal holds (else always)"
    )
    parser.add_argument("--save", type=Path, metavar="FILE", help="append the result as JSON")
    return parser


def arguments(description: str) -> argparse.Namespace:
    return parser(description).parse_args()


def machine() -> str:
    model = next(
        (
            line.split(":")[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.processor(),
    )
    versions = f"torch {torch.__version__}, Python {platform.python_version()}"
    return f"{model}, {torch.get_num_threads()} thread(s), {versions}"


def alternate(
    functions: dict[str, Callable[[], object]],
    *,
    repeats: int,
    warmup: int = 3,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Seconds of each call; the functions take turns, so that noise meets all of them alike."""
    seconds: dict[str, list[float]] = {name: [] for name in functions}
    for repeat in range(warmup + repeats):
        for name, function in functions.items():
            began = clock()
            function()
            if repeat >= warmup:
                seconds[name].append(clock() - began)
    return seconds


def paired(numerator: list[float], denominator: list[float]) -> float:
    """The median of the ratios of calls made side by side."""
    return statistics.median(a / b for a, b in zip(numerator, denominator, strict=True))


def finish(
    options: argparse.Namespace,
    figures: dict[str, float],
    *,
    goal: float | dict[str, float],
    what: str,
) -> None:
    """Print the figures beside the goal as the last line; exit as ``--check`` asks.

    ``goal`` is one for all figures, or by name for those that have one.
    """
    goals = goal if isinstance(goal, dict) else dict.fromkeys(figures, goal)
    held = all(figures[name] <= most for name, most in goals.items())
    if options.save:
        row = {
            "command": " ".join(["python", *sys.argv]).partition(" --save")[0],
            "date": time.strftime("%Y-%m-%d"),
            "machine": machine(),
            "what": what,
            "figures": {name: round(figure, 4) for name, figure in figures.items()},
            "goal": goal,
        }
        with options.save.open("a") as file:
            file.write(json.dumps(row) + "\n")
    shown = ", ".join(f"{name} {figure:.3f}" for name, figure in figures.items())
    most = ", ".join(f"{g} ({n})" for n, g in goal.items()) if isinstance(goal, dict) else goal
    print(f"{what}: {shown}; goal at most {most} {'holds' if held else 'MISSED'}")
    sys.exit(1 if options.check and not held else 0)
