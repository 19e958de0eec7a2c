"""The problems of a report: runs are compared with runs of the same data, split and model alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ..config.experiment import Experiment
from ..config.keys import flatten
from ..results.frames import configurations
from ..run.directory import RunDirectory
from .runs import Runs

__all__ = ["read_problems"]

DATA = ("data.dataset", "data.task", "data.partition", "data.concentration")
TABLES = ("data.options.", "model.")
NAMED_BY_VALUE = ("data.dataset", "data.partition", "model.name")
"""Keys whose value says enough in the name of a problem."""

Problem = tuple[tuple[str, str], ...]
"""Keys and values."""


def read_problems(
    directories: Sequence[Path], targets: Sequence[float] | None, limit: int | None = None
) -> dict[str, Runs]:
    """Return the runs in the directories by the name of their problem; empty if there is but one.

    A problem of which no run has finished a round is left out.  A variant has the same line in the
    figures of all problems.
    """
    configs = configurations(directories)
    groups: dict[Problem, list[Path]] = {}
    for run, config in configs.items():
        groups.setdefault(_problem(config), []).append(run)
    begun = {p: runs for p, runs in groups.items() if any(RunDirectory(run).round for run in runs)}
    if len(begun) < 2:
        return {"": Runs.read(next(iter(begun.values()), list(configs)), targets, limit)}
    names = _names(list(begun))
    found = {names[p]: Runs.read(runs, targets, limit) for p, runs in begun.items()}
    places = tuple(dict.fromkeys(v for runs in found.values() for v in sorted(runs.variants)))
    return {name: replace(runs, places=places) for name, runs in found.items()}


def _problem(config: Experiment) -> Problem:
    flat = flatten(config.model_dump(mode="json"))
    if config.data.partition in ("iid", "natural"):
        del flat["data.concentration"]  # it says nothing there
    keys = [key for key in flat if key in DATA or key.startswith(TABLES)]
    return tuple((key, str(flat[key])) for key in keys if flat[key] is not None)


def _names(problems: Sequence[Problem]) -> Mapping[Problem, str]:
    """Return a name for each problem: its data set, and in what it differs from others."""
    tables = [dict(problem) for problem in problems]
    every = dict.fromkeys(key for table in tables for key in table)
    differing = [key for key in every if len({table.get(key) for table in tables}) > 1]
    keys = ["data.dataset", *(key for key in differing if key != "data.dataset")]
    names = {}
    for problem, table in zip(problems, tables, strict=True):
        words = [
            table[key] if key in NAMED_BY_VALUE else f"{key.partition('.')[2]} {table[key]}"
            for key in keys
            if key in table
        ]
        names[problem] = ", ".join(words)
    return names
