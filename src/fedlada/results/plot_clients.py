"""``fedlada.plot_clients``: how well a model serves each client, or the best and worst of many."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Literal, get_args

from ..errors import require, require_known
from ..server.record import RoundRecord
from .plot import Against, Run, plot

if TYPE_CHECKING:
    from .plot import Figure

__all__ = ["plot_clients"]

By = Literal["client", "percentile"]
Value = Callable[[Mapping[str, float]], float | None]
"""Returns the value of a line, given that of each client; None if there is none."""
MOST_LINES = 10
"""Largest number of clients that have a line each unless it is asked for."""


def plot_clients(
    run: Run, *, metric: str | None = None, by: By | None = None, against: Against = "round"
) -> Figure:
    """Draw a metric with which clients evaluated the model, and return matplotlib's figure.

    There is a line for each client ``by="client"``; or for the 10th, 50th and 90th percentile of
    the clients ``by="percentile"``, which is the default for more than ten.  ``metric`` is a name
    in the records' ``evaluation``, by default the first.
    """
    every = run if isinstance(run, Sequence) else run.records
    records = [record for record in every if record.evaluation_clients]
    require(
        bool(records),
        "no record has the evaluations of single clients; give simulate evaluate_clients=, the"
        " held-out examples of each client, and run it",
    )
    known = list(records[-1].evaluation)
    chosen = known[0] if metric is None else metric
    require_known(chosen, known, f"metric is {metric!r}, which no client has")
    clients = dict.fromkeys(client for record in records for client in record.evaluation_clients)
    by = by or ("client" if len(clients) <= MOST_LINES else "percentile")
    require(by in get_args(By), f"by is {by!r}; it must be one of {', '.join(get_args(By))}")
    values: dict[str, Value] = {client: partial(_one, client) for client in clients}
    if by == "percentile":
        values = {f"{n}0th percentile of clients": partial(_quantile, n) for n in (9, 5, 1)}
    lines = {name: _with_metric(records, chosen, value) for name, value in values.items()}
    return plot(lines, metric=chosen, against=against)


def _one(client: str, values: Mapping[str, float]) -> float | None:
    return values.get(client)


def _quantile(tenths: int, values: Mapping[str, float]) -> float | None:
    """Return a quantile of the values, between them if need be."""
    if len(values) < 2:
        return next(iter(values.values()), None)
    return statistics.quantiles(values.values(), n=10, method="inclusive")[tenths - 1]


def _with_metric(records: Sequence[RoundRecord], metric: str, value: Value) -> list[RoundRecord]:
    """Return the records with one metric, the value of a line."""
    found = []
    for record in records:
        each = record.evaluation_clients.items()
        one = value({client: metrics[metric] for client, metrics in each if metric in metrics})
        found.append(replace(record, metrics={} if one is None else {metric: one}))
    return found
