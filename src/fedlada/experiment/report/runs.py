"""The runs of a report: their records, settings and progress."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import polars as pl

from ...errors import ExperimentError
from ...training.objective import Objective, Scale
from ..config.experiment import Experiment
from ..results.frames import configurations, frame, judged, measured, summary
from ..results.scores import targets_of
from ..run.directory import RunDirectory

__all__ = ["Runs", "Unit"]

CROWD = 10  # maximum number of lines in a figure; with more variants the best are drawn


class Unit(NamedTuple):
    """The name of a unit, and the factor that converts a value to it."""

    name: str
    factor: float


@dataclass(frozen=True)
class Runs:
    """The data from which tables and figures are computed."""

    configs: dict[Path, Experiment]
    rounds: pl.DataFrame
    """One row per run and round, see :func:`fedlada.experiment.results.frames.frame`."""
    ends: pl.DataFrame
    """One row per run, see :func:`fedlada.experiment.results.frames.summary`."""
    targets: tuple[float, ...]
    limit: int | None = None
    """The last round of the report, so that runs of unequal length can be compared."""
    places: tuple[str, ...] = ()
    """Names of variants by position, if several figures are to give each the same line."""

    @classmethod
    def read(
        cls,
        directories: Sequence[Path],
        targets: Sequence[float] | None,
        limit: int | None = None,
        *,
        last: int = 1,
        places: Sequence[str] = (),
    ) -> Runs:
        """Read all runs in the directories; by default the targets are those of the runs.

        The final score of a run is the mean of its ``last`` evaluations.
        """
        configs, rounds = configurations(directories), frame(directories, rounds=limit)
        scale = judged(configs, rounds).scale
        chosen = tuple(targets_of(directories, scale, targets))
        ends = summary(rounds, chosen, last=last)
        found = cls(configs, rounds, ends, chosen, limit, tuple(places))
        found._each_seed_once()
        return found

    @property
    def evaluated(self) -> bool:
        """Whether a score is recorded at all."""
        return self.rounds["score"].count() > 0

    @cached_property
    def variants(self) -> list[str]:
        """The algorithms, with the settings in which they differ, in the order of the runs."""
        return list(self.ends["variant"].unique(maintain_order=True))

    @cached_property
    def drawn(self) -> list[str]:
        """The variants in figures, the best first."""
        return self.by_score[:CROWD]

    @cached_property
    def positions(self) -> dict[str, int]:
        """The position of each variant, which determines its colour, dashes and marker."""
        order = self.places or sorted(self.variants, key=lambda variant: variant not in self.drawn)
        return {variant: order.index(variant) for variant in self.variants}

    @cached_property
    def titles(self) -> dict[str, str]:
        """The title of each variant's algorithm."""
        return dict(self.ends.select("variant", "title").rows())

    def of(self, variant: str) -> pl.DataFrame:
        """Return the rows of ``ends`` that belong to a variant."""
        return self.ends.filter(pl.col("variant") == variant)

    @cached_property
    def by_score(self) -> list[str]:
        """The variants, sorted by mean final score, the best first."""
        finals = {v: self.of(v)["final"].drop_nulls() for v in self.variants}
        sign = self.scale.sign
        means = {v: sign * sum(f) / len(f) if len(f) else -math.inf for v, f in finals.items()}
        return sorted(self.variants, key=lambda variant: -means[variant])

    def seed(self, directory: str) -> tuple[int, int]:
        """Return the seeds of a run, by which it is paired with others."""
        config = self.configs[Path(directory)]
        return config.federation.seed, config.data.seed

    @cached_property
    def split(self) -> str:
        """The split on which scores are measured."""
        return " and ".join(self.ends["split"].unique().sort())

    @cached_property
    def measure(self) -> str:
        """The name of the score within a sentence, such as accuracy or R²."""
        return measured(self.rounds)

    @cached_property
    def objective(self) -> Objective:
        """The objective of all runs."""
        return judged(self.configs, self.rounds)

    @cached_property
    def scale(self) -> Scale:
        """The unit and direction of the score."""
        return self.objective.scale

    @property
    def heading(self) -> str:
        """What follows a title that contains the score's name: its unit, if it needs one."""
        return self.scale.heading(self.measure)

    @cached_property
    def unfinished(self) -> dict[Path, tuple[int, int]]:
        """The unfinished runs, with their finished rounds and their total rounds."""
        found = {}
        for run, config in self.configs.items():
            rounds = RunDirectory(run).round
            if not (RunDirectory(run).finished() or (self.limit and rounds >= self.limit)):
                found[run] = (rounds, config.federation.rounds)
        return found

    @cached_property
    def bytes_unit(self) -> Unit:
        """The unit of bytes in the whole report, so that its numbers can be compared."""
        large = _largest(self.rounds["total_bytes"]) >= 2e9
        return Unit("GB", 1e-9) if large else Unit("MB", 1e-6)

    @cached_property
    def time_unit(self) -> Unit:
        """The unit of time in the whole report: seconds, minutes or hours."""
        return _time_unit(_largest(self.rounds["total_seconds"]))

    @cached_property
    def simulated_unit(self) -> Unit | None:
        """The unit of simulated time; None unless all runs have it."""
        times = self.rounds["time"]
        if times.null_count():
            return None
        unit = _time_unit(_largest(times))
        return Unit(f"simulated {unit.name}", unit.factor)

    @property
    def cost_units(self) -> dict[str, Unit]:
        """The units of what a run takes: rounds, bytes, seconds and, if known, simulated time."""
        units = {"rounds": Unit("rounds", 1.0), "bytes": self.bytes_unit, "seconds": self.time_unit}
        return units | ({"simulated": self.simulated_unit} if self.simulated_unit else {})

    def _each_seed_once(self) -> None:
        seen: dict[tuple[str, tuple[int, int]], str] = {}
        for variant, directory in self.ends.select("variant", "directory").rows():
            key = (variant, self.seed(directory))
            if key in seen:
                raise ExperimentError(
                    f"{seen[key]} and {directory} are the same run; give only one of them."
                )
            seen[key] = directory


def _time_unit(longest: float) -> Unit:
    if longest < 600:
        return Unit("seconds", 1.0)
    return Unit("minutes", 1 / 60) if longest < 10_800 else Unit("hours", 1 / 3600)


def _largest(values: pl.Series) -> float:
    return max(map(float, values.drop_nulls()), default=0.0)
