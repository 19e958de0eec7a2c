"""``fedlada.plot``: metrics of runs by rounds, as a figure for notebooks, scripts and papers."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from .errors import FedladaError, missing_extra, nearest, require
from .palette import GRID, INK, MUTED, colour, dashes, marker
from .server.record import RoundRecord

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Figure

__all__ = ["Run", "plot"]


class Recorded(Protocol):
    """A run that has its records, such as a :class:`fedlada.Simulation`."""

    @property
    def records(self) -> Sequence[RoundRecord]: ...
    @property
    def score(self) -> str | None: ...


Run = Recorded | Sequence[RoundRecord]
"""A run, or the records of one."""

Points = tuple[list[int], list[float]]


def plot(runs: Run | Mapping[str, Run], *, metric: str | None = None) -> Figure:
    """Draw a metric of one run, or of several runs by name, and return matplotlib's figure.

    A notebook shows the figure; ``figure.savefig("curve.png")`` writes it.  ``metric`` is a name
    in the records' ``metrics`` or ``client_metrics``.  By default it is the score of the run's
    evaluation, else the last metric of ``evaluate``, else the last that clients report.

    >>> plot({"fedavg": first, "fedlada": second}, metric="test_accuracy")
    """
    named = dict(runs) if isinstance(runs, Mapping) else {"": runs}
    require(bool(named), "runs are {}; give one run or more, by name")
    chosen = metric if metric is not None else _score(named)
    points = {name: _points(run, chosen, name) for name, run in named.items()}
    figure = _new_figure()
    axes = figure.add_subplot()
    for position, (name, (rounds, values)) in enumerate(points.items()):
        axes.plot(
            rounds,
            values,
            color=colour(position),
            dashes=dashes(position) or (None, None),
            linewidth=1.6,
            marker=marker(position),
            markersize=4,
            markevery=max(1, len(rounds) // 12),
            label=name,
        )
    _dress(axes, chosen, legend=isinstance(runs, Mapping))
    return figure


def _records(run: Run, name: str) -> Sequence[RoundRecord]:
    records = getattr(run, "records", run)
    if isinstance(records, str) or not isinstance(records, Sequence):
        raise FedladaError(
            f"a run to plot is {run!r:.100}; give a Simulation, its records, or several of them by"
            " name; fedlada report draws the runs in a directory"
        )
    require(
        len(records) > 0 and all(isinstance(record, RoundRecord) for record in records),
        f"there is no record in {f'run {name!r}' if name else 'the run'}: iterate over it, or call"
        " run(), and plot then; a run that went on from a checkpoint has the new records alone",
    )
    return records


def _score(named: Mapping[str, Run]) -> str:
    """Return the metric by which the first run is judged."""
    name, run = next(iter(named.items()))
    records = _records(run, name)
    evaluated = [metric for record in records for metric in record.metrics]
    reported = [metric for record in records for metric in record.client_metrics]
    score = getattr(run, "score", None)
    if score in evaluated:
        return str(score)
    require(
        bool(evaluated or reported),
        "no metric is recorded; give simulate evaluate=fedlada.Evaluation(data=(inputs, labels)),"
        " or let train return metrics",
    )
    return evaluated[-1] if evaluated else reported[-1]


def _points(run: Run, metric: str, name: str) -> Points:
    """Return the rounds in which a metric was recorded, and its values."""
    records = _records(run, name)
    found = [(r.round, {**r.client_metrics, **r.metrics}) for r in records]
    known = {known for _, metrics in found for known in metrics}
    require(
        metric in known,
        f"metric is {metric!r}, which no record{f' of {name!r}' if name else ''} has;"
        f" {nearest(metric, known)}",
    )
    having = [(round, metrics[metric]) for round, metrics in found if metric in metrics]
    return [round for round, _ in having], [value for _, value in having]


def _new_figure() -> Figure:
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise missing_extra(error, "fedlada.plot", "fedlada[report]") from None

    class Shown(Figure):
        """A figure that is a cell's value in a notebook, and opens no window elsewhere."""

        def _repr_png_(self) -> bytes:
            content = io.BytesIO()
            self.savefig(content, format="png", dpi=110)
            return content.getvalue()

    return Shown(figsize=(7.2, 4.0), layout="constrained")


def _dress(axes: Axes, metric: str, *, legend: bool) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.set_xlabel("round", color=MUTED)
    axes.set_title(metric.replace("_", " "), loc="left", color=INK, fontsize=11)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(colors=MUTED)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    if legend:
        axes.legend(frameon=False, labelcolor=INK)
