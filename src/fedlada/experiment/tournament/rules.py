"""The rules of a tournament, the same for every contestant on every problem."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import Any

from ...errors import ExperimentError, nearest, require

__all__ = ["Rules"]


@dataclass(frozen=True, kw_only=True)
class Rules:
    """How many rounds, seeds and evaluations decide.

    Every contestant tries its settings with one seed, on validation data.  At each rung the
    better half of a contestant's tries goes on, and at the last rung only the best.  That one
    then runs with all other seeds, on test data; if ``finalists`` is given, only of so many
    contestants of each problem.
    """

    tuning_seed: int = 100
    seeds: tuple[int, ...] = (0, 1, 2)
    rungs: tuple[float, ...] = (0.35, 0.7)
    """Shares of a problem's rounds."""
    last: int = 3
    """The number of evaluations whose mean is the score of a run."""
    finalists: int = 0
    """The number of contestants in the finals of a problem, best on validation; 0 means all."""
    always: tuple[str, ...] = ()
    """Contestants that are among the finalists of every problem, whatever their score."""

    @classmethod
    def of(cls, table: Mapping[str, Any]) -> Rules:
        """Return the rules of a table; an unknown key is an error that names the nearest."""
        known = [field.name for field in fields(cls)]
        for key in table:
            require(key in known, f"there is no key {f'rules.{key}'!r}; {nearest(key, known)}")
        lists: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in table.items()
        }
        try:
            return cls(**lists)
        except (TypeError, AttributeError):
            raise ExperimentError(
                f"rules are {dict(table)!r}; write, for example, seeds = [0, 1, 2], rungs = [0.35,"
                " 0.7], tuning_seed = 100, last = 3, finalists = 5 and always = ['fedavg']."
            ) from None

    def __post_init__(self) -> None:
        for number in (self.tuning_seed, self.last, self.finalists, *self.seeds):
            require(
                type(number) is int and number >= 0,
                f"{number!r} in [rules] must be a whole number that is not negative",
            )
        require(self.last > 0, "rules.last is 0; a score needs 1 evaluation or more")
        require(
            len({*self.seeds}) == len(self.seeds) > 0,
            f"rules.seeds is {[*self.seeds]}; give one or more seeds, each once",
        )
        require(
            self.tuning_seed not in self.seeds,
            f"rules.tuning_seed is {self.tuning_seed}, which is in rules.seeds too; settings chosen"
            " with a seed would be judged by the same: give another",
        )
        rising = all(a < b for a, b in pairwise((0.0, *self.rungs)))
        require(
            len(self.rungs) > 0 and rising and self.rungs[-1] <= 1,
            f"rules.rungs is {[*self.rungs]}; give rising shares of the rounds, as [0.35, 0.7]",
        )

    def rounds(self, rounds: int, *, every: int) -> list[int]:
        """Return the round of each rung, at an evaluation: a run stopped there has no other."""
        found = [min(rounds, every * math.ceil(share * rounds / every)) for share in self.rungs]
        return list(dict.fromkeys(found))

    def in_finals(self, contestants: int) -> int:
        """Return how many of so many contestants run the finals."""
        return min(max(self.finalists, len(self.always)) or contestants, contestants)

    def chosen(self, order: Sequence[str]) -> list[str]:
        """Return the finalists of contestants in the order of their scores, best first."""
        if not self.finalists:
            return [*order]
        others = [c for c in order if c not in self.always]
        return [*self.always, *others][: self.in_finals(len(order))]

    def staying(self, tries: int, *, last: bool) -> int:
        """Return how many of a contestant's tries go on after a rung."""
        return 1 if last else math.ceil(tries / 2)
