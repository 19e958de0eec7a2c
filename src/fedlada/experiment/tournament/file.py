"""The file of a tournament: problems, contestants and their settings to try.

::

    [common]                            # keys of every problem
    settings.weight_decay = 0.001

    [problem.digits]                    # an experiment: its keys, or the file that has them
    data.dataset = "digits"

    [contestant.fedavg]                 # lists are settings to try, as in a sweep
    settings.lr = [0.03, 0.1, 0.3]
    on.digits.settings.lr = [0.1, 0.3, 1.0]   # other tries on one problem

A file's ``[sweep]`` and its algorithm are left out: contestants bring theirs.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...errors import ExperimentError, nearest
from ..config.cells import combined
from ..config.experiment import Experiment
from ..config.keys import flatten, nest
from ..config.reading import parse, table
from .rules import Rules

__all__ = ["Contest", "Tournament", "read_tournament"]

TABLES = ("name", "rules", "common", "problem", "contestant")
DECIDED = {
    "evaluate.split": "validation for tries, test for finals",
    "federation.seed": "rules.tuning_seed and rules.seeds",
    "name": "the tournament's and the problem's",
    "label": "the contestant's name",
}
"""Keys that the tournament itself sets."""


@dataclass(frozen=True)
class Contest:
    """One problem with the tries of every contestant, by name, as they would run to the end."""

    name: str
    tries: Mapping[str, Mapping[str, Experiment]]

    @property
    def one(self) -> Experiment:
        """Some try; what the problem decides is the same in all."""
        return next(iter(next(iter(self.tries.values())).values()))

    @property
    def rounds(self) -> int:
        """The number of rounds of a whole run."""
        return self.one.federation.rounds

    @property
    def each(self) -> int:
        """The number of tries that each contestant has."""
        return len(next(iter(self.tries.values())))


@dataclass(frozen=True)
class Tournament:
    """The rules, and a contest for each problem; the contestants are the same in all."""

    name: str
    rules: Rules
    contests: tuple[Contest, ...]

    @property
    def contestants(self) -> list[str]:
        """The names of the contestants, in the order of the file."""
        return list(self.contests[0].tries)


def read_tournament(
    path: Path, changes: Iterable[str] = (), *, only: Sequence[str] = ("*",)
) -> Tournament:
    """Return the tournament of a file, with the problems whose name matches a pattern."""
    tree = nest(flatten(table(path)) | dict(map(parse, changes)))
    for key in tree:
        if key not in TABLES:
            raise ExperimentError(f"{path}: there is no key {key!r}; {nearest(key, TABLES)}.")
    common, problems, contestants = (
        _tables(tree, key, path) for key in ("common", "problem", "contestant")
    )
    name = str(tree.get("name", path.stem))
    if not problems or not contestants:
        raise ExperimentError(
            f"{path} has {len(problems)} problems and {len(contestants)} contestants; give one or"
            " more [problem.NAME] and [contestant.NAME]."
        )
    chosen = [p for p in problems if any(fnmatch.fnmatch(p, pattern) for pattern in only)]
    if not chosen:
        raise ExperimentError(
            f"No problem of {path} matches {' or '.join(map(repr, only))}; there are"
            f" {', '.join(problems)}."
        )
    for contestant, own in contestants.items():
        for problem in own.get("on", {}):
            if problem not in problems:
                raise ExperimentError(
                    f"{path}: contestant.{contestant}.on names {problem!r};"
                    f" {nearest(problem, problems)}."
                )
    contests = []
    for problem in chosen:
        flat, beside = _problem(problem, problems[problem], common, path)
        flat["name"] = f"{name}-{problem}"
        tries = {c: _tries(c, own, problem, flat, path, beside) for c, own in contestants.items()}
        contests.append(Contest(problem, tries))
    _equal(contests, path)
    rules = Rules.of(_tables(tree, "rules", path))
    for always in rules.always:
        if always not in contestants:
            raise ExperimentError(
                f"{path}: rules.always names {always!r}; {nearest(always, contestants)}."
            )
    return Tournament(name, rules, tuple(contests))


def _problem(
    name: str, own: Mapping[str, Any], common: Mapping[str, Any], path: Path
) -> tuple[dict[str, object], Path]:
    """Return the dotted keys of a problem, and the directory of the modules that they name."""
    flat, beside = flatten(own), path.parent
    base: dict[str, object] = {}
    if (file := flat.pop("file", None)) is not None:
        beside = (path.parent / str(file)).parent
        whole = table(path.parent / str(file))
        base = flatten({k: v for k, v in whole.items() if k not in ("sweep", "algorithm", "label")})
        base = {key: value for key, value in base.items() if key not in DECIDED}
    keys = flatten(common) | flat
    _undecided(keys, f"{path}: problem.{name}")
    return base | keys, beside


def _tries(
    contestant: str,
    own: Mapping[str, Any],
    problem: str,
    flat: Mapping[str, object],
    path: Path,
    beside: Path,
) -> dict[str, Experiment]:
    axes = flatten({key: value for key, value in own.items() if key != "on"})
    axes |= flatten(own.get("on", {}).get(problem, {}))
    _undecided(axes, f"{path}: contestant.{contestant}")
    axes = {"algorithm": contestant, "label": contestant} | axes
    base = {**flat, "evaluate.split": "validation"}
    return dict(combined(base, axes, path, beside=beside))


def _undecided(keys: Iterable[str], where: str) -> None:
    for key in keys:
        if key in DECIDED:
            raise ExperimentError(
                f"{where} sets {key}, which the tournament decides ({DECIDED[key]}); leave it out."
            )


def _tables(tree: Mapping[str, Any], key: str, path: Path) -> dict[str, Any]:
    found = tree.get(key, {})
    inner = found.values() if isinstance(found, dict) and key in ("problem", "contestant") else ()
    if not isinstance(found, dict) or not all(isinstance(one, dict) for one in inner):
        raise ExperimentError(f"{path}: {key} must be a table; write [{key}] or [{key}.NAME].")
    return found


def _equal(contests: Sequence[Contest], path: Path) -> None:
    """Check that every contestant has as many tries as every other, on each problem."""
    counts = {
        f"{contestant} on {contest.name}": len(tries)
        for contest in contests
        for contestant, tries in contest.tries.items()
    }
    if len(set(counts.values())) > 1:
        least, most = min(counts, key=counts.__getitem__), max(counts, key=counts.__getitem__)
        raise ExperimentError(
            f"{path}: {least} has {counts[least]} tries and {most} has {counts[most]}; a fair"
            " comparison gives everybody the same number: list as many settings."
        )
