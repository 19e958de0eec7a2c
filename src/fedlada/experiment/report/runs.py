"""The runs that a report is about: their records, their settings, how far each has come."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import polars as pl

from ...client.objective import Objective
from ...data import SOURCES
from ...errors import ExperimentError
from ..config.experiment import Experiment
from ..results.comparison import targets_of
from ..results.frames import configurations, frame, measured, summary
from ..run.directory import RunDirectory

__all__ = ["Runs", "Unit", "percent"]

CROWD = 10  # lines in one pair of axes at most; more are drawn by algorithm


class Unit(NamedTuple):
    """What to multiply with, and what to call the result."""

    name: str
    factor: float


@dataclass(frozen=True)
class Runs:
    """Everything that the tables and figures are computed from."""

    configs: dict[Path, Experiment]
    rounds: pl.DataFrame
    """A row per run and round, see :func:`fedlada.experiment.results.frame`."""
    ends: pl.DataFrame
    """A row per run, see :func:`fedlada.experiment.results.summary`."""
    targets: tuple[float, ...]
    limit: int | None = None
    """The round that the report ends with, so that runs of unequal length can be compared."""

    @classmethod
    def read(
        cls,
        directories: Sequence[Path],
        targets: Sequence[float] | None,
        limit: int | None = None,
    ) -> Runs:
        """All runs in the directories; without targets those that the runs' files name."""
        chosen = tuple(sorted(targets_of(directories) if targets is None else set(targets)))
        rounds = frame(directories, rounds=limit)
        ends = summary(rounds, chosen)
        found = cls(configurations(directories), rounds, ends, chosen, limit)
        measured(rounds)  # which all runs share
        found._each_seed_once()
        return found

    @cached_property
    def variants(self) -> list[str]:
        """Algorithms, told apart by settings where these differ, in the order of the runs."""
        return list(self.ends["variant"].unique(maintain_order=True))

    @cached_property
    def positions(self) -> dict[str, int]:
        """The place of each variant in the order of looks: among all, or if crowded of its title.

        Looks are what colour, dashes and shape a line has in all figures and tables.
        """
        if not self.crowded:
            return {variant: place for place, variant in enumerate(self.variants)}
        same = [[v for v in self.variants if self.titles[v] == t] for t in self.titles.values()]
        return {variant: place for group in same for place, variant in enumerate(group)}

    @cached_property
    def titles(self) -> dict[str, str]:
        """The title of each variant's algorithm."""
        return dict(self.ends.select("variant", "title").rows())

    @property
    def crowded(self) -> bool:
        """Whether there are too many variants for one pair of axes."""
        return len(self.variants) > CROWD and len(set(self.titles.values())) > 1

    def of(self, variant: str) -> pl.DataFrame:
        """The rows of ``ends`` that belong to a variant."""
        return self.ends.filter(pl.col("variant") == variant)

    @cached_property
    def by_score(self) -> list[str]:
        """The variants, those with the highest mean final score first."""
        finals = {v: self.of(v)["final"].drop_nulls() for v in self.variants}
        means = {v: sum(f) / len(f) if len(f) else -math.inf for v, f in finals.items()}
        return sorted(self.variants, key=lambda variant: -means[variant])

    def seed(self, directory: str) -> tuple[int, int]:
        """The seeds of a run, by which it is paired with others."""
        config = self.configs[Path(directory)]
        return config.federation.seed, config.data.seed

    @cached_property
    def split(self) -> str:
        """What scores are measured on."""
        return " and ".join(self.ends["split"].unique().sort())

    @cached_property
    def measure(self) -> str:
        """What the score is called within a sentence: accuracy, R²."""
        return measured(self.rounds)

    @cached_property
    def objective(self) -> Objective:
        """The objective of all runs."""
        first = next(iter(self.configs.values()))
        return first.objective(self.rounds.columns)

    @cached_property
    def things(self) -> str:
        """What the examples of these runs are."""
        known = all(config.data.dataset in SOURCES for config in self.configs.values())
        return "images" if known else "examples"

    @cached_property
    def unfinished(self) -> dict[Path, tuple[int, int]]:
        """Runs that are not done, with the rounds they have and should have."""
        found = {}
        for run, config in self.configs.items():
            rounds = int(str(RunDirectory(run).last_record().get("round", 0)))
            if not (RunDirectory(run).finished() or (self.limit and rounds >= self.limit)):
                found[run] = (rounds, config.federation.rounds)
        return found

    @cached_property
    def bytes_unit(self) -> Unit:
        """One unit for the whole report, so that its numbers can be compared."""
        large = _largest(self.rounds["total_bytes"]) >= 2e9
        return Unit("GB", 1e-9) if large else Unit("MB", 1e-6)

    @cached_property
    def time_unit(self) -> Unit:
        """Seconds, minutes or hours, likewise."""
        longest = _largest(self.rounds["total_seconds"])
        if longest < 600:
            return Unit("seconds", 1.0)
        return Unit("minutes", 1 / 60) if longest < 10_800 else Unit("hours", 1 / 3600)

    def _each_seed_once(self) -> None:
        seen: dict[tuple[str, tuple[int, int]], str] = {}
        for variant, directory in self.ends.select("variant", "directory").rows():
            key = (variant, self.seed(directory))
            if key in seen:
                raise ExperimentError(
                    f"{seen[key]} and {directory} are the same run; give only one of them."
                )
            seen[key] = directory


def percent(share: float) -> str:
    """``80 %``."""
    return f"{100 * share:.4g} %"


def _largest(values: pl.Series) -> float:
    return max(map(float, values.drop_nulls()), default=0.0)
