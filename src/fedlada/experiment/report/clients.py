"""How well each algorithm serves the clients that it serves worst, as a table of a report."""

from __future__ import annotations

import polars as pl

from ..results.scores import capital, scored
from .page import Block, Table
from .runs import Runs

__all__ = ["clients"]

COLUMNS = {
    "mean": "{score}_evaluation",
    "median": "{score}_evaluation_median",
    "worst tenth": "{score}_evaluation_worst",
    "fine-tuned: mean": "{score}_tuned_evaluation",
    "fine-tuned: worst tenth": "{score}_tuned_evaluation_worst",
}
"""The columns of the table, and those of the frame that they come from."""


def clients(runs: Runs) -> list[Block]:
    """Return a table of the clients' last evaluations on examples of their own, if there are."""
    named = {title: column.format(score=runs.objective.score) for title, column in COLUMNS.items()}
    named = {title: column for title, column in named.items() if column in runs.rounds.columns}
    if not named:
        return []
    last = runs.rounds.group_by("variant", "directory", maintain_order=True).agg(
        pl.col(column).drop_nulls().last() for column in named.values()
    )
    of = {v: last.filter(pl.col("variant") == v) for v in runs.by_score}
    table = Table(
        caption=f"{capital(runs.measure)} on the clients' own held-out examples{runs.heading}",
        columns=("algorithm", *named),
        rows=tuple(
            (v, *(scored(of[v][column], runs.scale) for column in named.values()))
            for v in runs.by_score
        ),
        note="The last evaluation of each run. Means are weighted by examples; the median and the"
        " worst tenth count each client once. ± is the standard deviation over seeds.",
    )
    return [table]
