"""Predictions beside rounds that were measured and did not enter the constants."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from ..config.experiment import Experiment
from ..run.problem import Problem
from .constants import DEPLOYED, Constants
from .formula import Setting, Workload, predict
from .measuring import fit
from .trials import Sample, Trial

__all__ = ["Check", "check", "measured"]

COHORT, STEPS = 6, (5, 10)
"""The rounds that check the constants."""


@dataclass(frozen=True, kw_only=True)
class Check:
    """A round's prediction and measurement."""

    what: str
    predicted: float
    """Seconds."""
    measured: float
    bytes_predicted: float
    bytes_measured: float

    @property
    def error(self) -> float:
        """The relative error of the time."""
        return self.predicted / self.measured - 1

    @property
    def bytes_error(self) -> float:
        """The relative error of the bytes."""
        return self.bytes_predicted / self.bytes_measured - 1


def measured(
    config: Experiment, problem: Problem, work: Workload, *, seconds: float
) -> tuple[Constants, list[Check]]:
    """Return constants of this machine, and how well they predict rounds not used for them."""
    cohort = min(len(problem.clients), COHORT)
    trials = [Trial.of(config, problem, cohort=cohort, steps=steps) for steps in STEPS]
    constants, seen = fit(config, problem, work, trials, seconds=seconds)
    return constants, [
        check(work, constants, trial, samples) for trial, samples in zip(trials, seen, strict=True)
    ]


def check(work: Workload, constants: Constants, trial: Trial, samples: Sequence[Sample]) -> Check:
    """Return the prediction of a trial's rounds beside the median of what was measured."""
    cost = predict(
        dataclasses.replace(work, steps=trial.steps),
        Setting(clients=len(trial.clients), cohort=trial.cohort, rounds=1),
        constants,
        DEPLOYED,
    )
    return Check(
        what=f"{trial.cohort} clients of {trial.steps} steps",
        predicted=cost.seconds,
        measured=statistics.median(sample.round for sample in samples),
        bytes_predicted=cost.bytes_down + cost.bytes_up,
        bytes_measured=statistics.median(
            sample.record.bytes_down + sample.record.bytes_up for sample in samples
        ),
    )
