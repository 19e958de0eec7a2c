"""What private runs have spent: epsilon beside each score, and that of all runs together."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import NamedTuple

import polars as pl

from ...privacy.account import Event, composed
from ..results.scores import capital, scored, span
from .figures import curves, score_panel
from .page import Block, Figure, Table
from .runs import Runs

__all__ = ["against_epsilon", "spent"]

ROUNDING = 1e-6
"""Two values of epsilon that differ by less, relative to themselves, are of as many releases."""


class Spent(NamedTuple):
    """What one run has spent after its last round."""

    variant: str
    directory: str
    event: Event
    releases: int
    epsilon: float
    delta: float
    seeded: bool


def spent(runs: Runs) -> list[Block]:
    """Return a table of what each variant and all runs together have spent, if any is private."""
    every = _spent(runs)
    if not every:
        return []
    events, delta = Counter[Event](), min(run.delta for run in every)
    for run in every:
        events[run.event] += run.releases
    rows = [
        _row(variant, own, scored(runs.of(variant)["final"], runs.scale))
        for variant in runs.by_score
        if (own := [run for run in every if run.variant == variant])
    ]
    total = (str(len(every)), "", str(events.total()), f"{composed(events, delta):.2f}", "")
    note = (
        f"Delta is {delta:g}. The epsilon of a row is the largest of a single run. The results of"
        " all runs over the same clients tell as much as the last row says, and so does whatever"
        " is chosen by them."
    )
    if any(run.seeded for run in every):
        note += " Seeded runs are simulations: they protect nobody, and the same runs without"
        note += " seeded would have this epsilon."
    if others := len(runs.ends) - len(every):
        note += f" Not counted: {others} of {len(runs.ends)} runs, which have no noise and promise"
        note += " nothing."
    return [
        Table(
            caption="Privacy of each client",
            columns=("algorithm", "runs", "noise", "releases", "epsilon", "final"),
            rows=(*rows, ("all together", *total)),
            note=note,
        )
    ]


def against_epsilon(runs: Runs) -> list[Block]:
    """Return a figure of the score against what is spent, if there are private runs."""
    directories = [run.directory for run in _spent(runs)]
    if not (directories and runs.evaluated):
        return []
    private = runs.rounds.filter(pl.col("directory").is_in(directories))
    title = f"{capital(runs.measure)} against epsilon{runs.heading}"
    panel = score_panel(replace(runs, rounds=private), title, across="epsilon", column="epsilon")
    ends = "; ".join(
        f"{line.name} {line.mean[-1]:.{runs.scale.digits - 1}f} at {line.x[-1]:.2f}"
        for line in panel.series
    )
    alt = f"{title}. At the end: {ends}."
    return [Figure(name="epsilon", svg=curves([panel], alt), alt=alt)]


def _row(variant: str, own: Sequence[Spent], final: str) -> tuple[str, ...]:
    noises = dict.fromkeys(f"{run.event.noise:g}" for run in own)
    releases = span(pl.Series(run.releases for run in own))
    largest = max(run.epsilon for run in own)
    return variant, str(len(own)), ", ".join(noises), releases, f"{largest:.2f}", final


def _spent(runs: Runs) -> list[Spent]:
    """Return what each private run with noise has spent."""
    columns = ["noise", "epsilon", "delta", "seeded"]
    if not {*columns} <= {*runs.rounds.columns}:  # records of earlier versions
        return []
    last = (
        runs.rounds.filter(pl.col("noise").cast(pl.Float64) > 0, pl.col("epsilon").is_not_null())
        .group_by("variant", "directory", maintain_order=True)
        .agg(pl.col(columns).last(), pl.len().alias("rounds"))
    )
    found = []
    for variant, directory, noise, epsilon, delta, seeded, rounds in last.rows():
        cohort = runs.configs[Path(directory)].federation.cohort
        event = Event(1.0 if cohort == "all" else float(cohort), noise)
        releases = _releases(event, rounds, epsilon, delta)
        found.append(Spent(variant, directory, event, releases, epsilon, delta, bool(seeded)))
    return found


@cache
def _releases(event: Event, rounds: int, epsilon: float, delta: float) -> int:
    """Return how many releases have this epsilon: more than rounds if kills have cost some."""
    count = rounds
    while math.isfinite(epsilon) and composed({event: count}, delta) < epsilon * (1 - ROUNDING):
        count += 1
    return count
