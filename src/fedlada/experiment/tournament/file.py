"""The file of a tournament: its rules, problems and contestants.

::

    [rules]                             # see Rules
    seeds = [0, 1, 2]

    [common]                            # keys of every problem
    settings.weight_decay = 0.001

    [problem.digits]                    # an experiment: its keys, or the file that has them
    data.dataset = "digits"

    [contestant.fedavg]                 # lists are settings to try, as in a sweep
    settings.lr = [0.03, 0.1, 0.3]
    on.digits.settings.lr = [0.1, 0.3, 1.0]   # other tries on one problem

The tournament ignores the ``[sweep]`` and the algorithm of a problem's file.  A problem that does
not set ``data.seed`` has another partition with every seed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, model_validator

from ...errors import ExperimentError, nearest, require, require_known
from ..config.cells import combined, matching
from ..config.experiment import Experiment
from ..config.keys import flatten, nest
from ..config.reading import complaint, parse, table
from ..config.sections import Count, Section, Seed

__all__ = ["Contest", "Rules", "Tournament", "changed", "read_tournament"]

Tables = dict[str, dict[str, Any]]
DECIDED = ("evaluate.split", "federation.seed", "name", "label")
"""Keys that the tournament sets."""
PARTITION = "data.seed"
"""The key that the tournament sets to the seed, unless a problem sets it."""


class Rules(Section):
    """How many rounds, seeds and evaluations decide.

    Every contestant tries its settings with one seed, on validation data.  At each rung the better
    half of a contestant's tries continues, and at the last rung only the best.  The best settings
    then run with all other seeds, on test data.
    """

    tuning_seed: Seed = 100
    seeds: Annotated[tuple[Seed, ...], Field(strict=False, min_length=1)] = (0, 1, 2)
    rungs: Annotated[tuple[float, ...], Field(strict=False, min_length=1)] = (0.35, 0.7)
    """Shares of a problem's rounds."""
    last: Count = 3
    """The number of evaluations whose mean is the score of a run."""
    window: Annotated[int, Field(ge=0)] = 0
    """The last rounds of the finals whose evaluations are the score there, so that problems with
    unequal evaluation intervals are judged alike; 0 means the last ``last`` evaluations."""
    finalists: Annotated[int, Field(ge=0)] = 0
    """The number of contestants in the finals of a problem, best on validation; 0 means all."""
    always: Annotated[tuple[str, ...], Field(strict=False)] = ()
    """Contestants, such as a baseline, that run every finals beside these and take nobody's place.
    """
    edges: Literal["report", "refuse"] = "report"
    """What happens if a chosen number is the lowest or highest of those tried: the report says so,
    or the problem has no finals until the file lists others."""

    @model_validator(mode="after")
    def _consistent(self) -> Rules:
        require(
            len({*self.seeds}) == len(self.seeds),
            f"rules.seeds is {[*self.seeds]}; give each seed once",
        )
        require(
            self.tuning_seed not in self.seeds,
            f"rules.tuning_seed is {self.tuning_seed}, which rules.seeds contains; the finals must"
            " not use the seed that chose the settings: give another",
        )
        rising = all(a < b for a, b in pairwise((0.0, *self.rungs)))
        require(
            rising and self.rungs[-1] <= 1,
            f"rules.rungs is {[*self.rungs]}; give rising shares of the rounds, as [0.35, 0.7]",
        )
        return self

    def in_finals(self, contestants: int) -> int:
        """Return the largest number of contestants that run the finals."""
        wanted = self.finalists + len(self.always) if self.finalists else contestants
        return min(wanted, contestants)

    def chosen(self, order: Sequence[str]) -> set[str]:
        """Return the finalists of contestants in the order of their scores, best first."""
        return {*order[: self.finalists or None], *self.always}


class File(Section):
    """The tables of the file; those of problems and contestants are checked as experiments."""

    name: str = ""
    rules: Rules = Rules()
    common: dict[str, Any] = Field(default_factory=dict)
    problem: Tables = Field(default_factory=dict)
    contestant: Tables = Field(default_factory=dict)
    records: str = ""
    """A directory beside the file with packed runs, PROBLEM.jsonl, that need not run again."""

    @model_validator(mode="after")
    def _names_are_known(self) -> File:
        require(
            bool(self.problem and self.contestant),
            f"the file has {len(self.problem)} problems and {len(self.contestant)} contestants;"
            " give one or more [problem.NAME] and [contestant.NAME]",
        )
        for name in self.rules.always:
            require_known(name, self.contestant, f"rules.always names {name!r}")
        for contestant, keys in self.contestant.items():
            for name in keys.get("on", {}):
                where = f"contestant.{contestant}.on"
                require_known(name, self.problem, f"{where} names {name!r}")
        return self


@dataclass(frozen=True)
class Contest:
    """One problem with the tries of every contestant, by name, as they would run to the end."""

    name: str
    rounds: int
    every: int
    """The number of rounds from one evaluation to the next."""
    tries: Mapping[str, Mapping[str, Experiment]]
    one_partition: bool = False
    """Whether all seeds share a partition, because the problem sets ``data.seed``."""

    def seeded(self, config: Experiment, seed: int, **sections: Mapping[str, Any]) -> Experiment:
        """Return the configuration with a seed, its partition, and other values of some keys."""
        data = {} if self.one_partition else {"data": {"seed": seed}}
        return changed(config, federation={"seed": seed}, **data, **sections)

    @property
    def each(self) -> int:
        """The number of tries that each contestant has."""
        return len(next(iter(self.tries.values())))

    def last_in_finals(self, rules: Rules) -> int:
        """Return the number of evaluations whose mean is the score of a final."""
        if not rules.window:
            return rules.last
        late = range(max(1, self.rounds - rules.window + 1), self.rounds + 1)
        return sum(at % self.every == 0 or at == self.rounds for at in late)

    def rungs(self, rules: Rules) -> list[tuple[int, int]]:
        """Return the round of each rung and how many tries of each contestant run up to it.

        A rung is at an evaluation, because a run that stops elsewhere has no score there.
        """
        rounds = (self.every * math.ceil(s * self.rounds / self.every) for s in rules.rungs)
        rising = dict.fromkeys(min(self.rounds, at) for at in rounds)
        return [(at, math.ceil(self.each / 2**number)) for number, at in enumerate(rising)]


@dataclass(frozen=True)
class Tournament:
    """The rules, and a contest for each problem; the contestants are the same in all."""

    name: str
    rules: Rules
    contests: tuple[Contest, ...]
    records: Path | None = None
    """The directory of packed runs that need not run again."""

    @property
    def contestants(self) -> list[str]:
        """The names of the contestants, in the order of the file."""
        return list(self.contests[0].tries)


def read_tournament(
    path: Path, changes: Iterable[str] = (), *, only: Sequence[str] = ("*",)
) -> Tournament:
    """Return the tournament of a file, with the problems whose name matches a pattern."""
    tree = nest(flatten(table(path)) | dict(map(parse, changes)))
    try:
        file = File.model_validate(tree)
    except ValidationError as error:
        raise ExperimentError(f"{path}: {_sentence(error)}.") from None
    name = file.name or path.stem
    problems = matching(file.problem, only, path)
    contests = tuple(_contest(problem, name, file, path) for problem in problems)
    counts = {
        f"{c} on {one.name}": len(tries) for one in contests for c, tries in one.tries.items()
    }
    least, most = (choice(counts, key=counts.__getitem__) for choice in (min, max))
    if counts[least] < counts[most]:
        raise ExperimentError(
            f"{path}: {least} has {counts[least]} tries and {most} has {counts[most]}; a fair"
            " comparison gives everybody the same number: list as many settings."
        )
    records = path.parent / file.records if file.records else None
    if records is not None and not records.is_dir():
        raise ExperimentError(
            f"{path}: records is {file.records!r}, and there is no directory {records}; give one"
            " with packed runs, or leave it out."
        )
    return Tournament(name, file.rules, contests, records)


def _contest(problem: str, name: str, file: File, path: Path) -> Contest:
    """Combine the keys of a problem with those that each contestant tries."""
    keys, beside = flatten(file.common) | flatten(file.problem[problem]), path.parent
    base: dict[str, object] = {}
    if "file" in keys:
        other = path.parent / str(keys.pop("file"))
        beside = other.parent
        content = {k: v for k, v in table(other).items() if k not in ("algorithm", "sweep")}
        base = {key: value for key, value in flatten(content).items() if key not in DECIDED}
    base |= keys | {"evaluate.split": "validation", "name": f"{name}-{problem}"}
    tries: dict[str, dict[str, Experiment]] = {}
    for contestant, own in file.contestant.items():
        axes = flatten({key: value for key, value in own.items() if key != "on"})
        axes |= flatten(own.get("on", {}).get(problem, {}))
        for key in DECIDED:
            if key in {**keys, **axes}:
                raise ExperimentError(
                    f"{path}: {key}, for {contestant} on {problem}, is set by the tournament;"
                    " leave it out."
                )
        if PARTITION in axes:
            raise ExperimentError(
                f"{path}: {PARTITION}, for {contestant} on {problem}, must be the same for all"
                " contestants; set it for the problem, or leave it out."
            )
        axes = {"algorithm": contestant, "label": contestant} | axes
        tries[contestant] = dict(combined(base, axes, path, beside=beside))
    one = next(config for each in tries.values() for config in each.values())
    return Contest(problem, one.federation.rounds, one.evaluate.every, tries, PARTITION in base)


def changed(config: Experiment, **sections: Mapping[str, Any]) -> Experiment:
    """Return the configuration with other values of some keys."""
    tables = {
        name: getattr(config, name).model_copy(update=keys) for name, keys in sections.items()
    }
    return config.model_copy(update=tables)


def _sentence(error: ValidationError) -> str:
    first = error.errors()[0]
    words = [str(word) for word in first["loc"]]
    key = ".".join(words)
    if first["type"] == "extra_forbidden":
        known = Rules.model_fields if len(words) > 1 else File.model_fields
        return f"there is no key {key!r}; {nearest(words[-1], known)}"
    return complaint(key, first)
