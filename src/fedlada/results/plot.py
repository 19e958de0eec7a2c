"""``fedlada.plot``: metrics of runs by rounds, as a figure for notebooks, scripts and papers."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal, get_args

from ..errors import FedladaError, missing_extra, nearest, require
from ..server.record import RoundRecord
from .recorded import Recorded

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Figure

__all__ = ["GRID", "INK", "MUTED", "Against", "Run", "colour", "dashes", "marker", "plot"]

# The hues are those of Okabe and Ito, which most colour-blind readers can tell apart, with the pale
# ones darkened.  Lines never differ in colour alone.
INK, MUTED, GRID = "#1f2328", "#59636e", "#dfe3e8"
_COLOURS = (
    "#0072b2",
    "#d55e00",
    "#009e73",
    "#b5538c",
    "#a67c00",
    "#3d444d",
    "#3f9bd8",
    "#7a4a21",
    "#6247c4",
    "#a3123a",
)
_DASHES: tuple[tuple[float, ...], ...] = ((), (5, 2), (7, 2, 1.5, 2), (1.5, 1.8))
_MARKERS = ("o", "s", "^", "D", "v", "P")


Run = Recorded | Sequence[RoundRecord]
"""A run, or the records of one."""

Against = Literal["round", "time"]
Points = tuple[list[float], list[float]]


def plot(
    runs: Run | Mapping[str, Run], *, metric: str | None = None, against: Against = "round"
) -> Figure:
    """Draw a metric of one run, or of several runs by name, and return matplotlib's figure.

    A notebook shows the figure; ``figure.savefig("curve.png")`` writes it.  ``metric`` is a name
    in the records' ``metrics`` or ``client_metrics``.  By default it is the score of the run's
    evaluation, or the last metric of ``evaluate``, or the last that clients report.  Runs with
    devices can be drawn ``against="time"``, in simulated seconds.

    >>> plot({"fedavg": first, "fedlada": second}, metric="test_accuracy")
    """
    named = dict(runs) if isinstance(runs, Mapping) else {"": runs}
    require(bool(named), "runs are {}; give one run or more, by name")
    chosen = metric if metric is not None else _score(named)
    require(
        against in get_args(Against),
        f"against is {against!r}; it must be one of {', '.join(get_args(Against))}",
    )
    points = {name: _points(run, chosen, name, against) for name, run in named.items()}
    figure = _new_figure()
    axes = figure.add_subplot()
    for position, (name, (across, values)) in enumerate(points.items()):
        axes.plot(
            across,
            values,
            color=colour(position),
            dashes=dashes(position) or (None, None),
            linewidth=1.6,
            marker=marker(position),
            markersize=4,
            markevery=max(1, len(across) // 12),
            label=name,
        )
    _dress(axes, chosen, against, legend=isinstance(runs, Mapping))
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
        " run(), and plot then",
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


def _points(run: Run, metric: str, name: str, against: Against) -> Points:
    """Return the rounds, or the times, at which a metric was recorded, and its values."""
    records = _records(run, name)
    require(
        against == "round" or all(record.time is not None for record in records),
        f"there is no simulated time in {f'run {name!r}' if name else 'the run'}; give simulate"
        " devices=fedlada.engines.Devices()",
    )
    found = [(getattr(r, against), {**r.client_metrics, **r.metrics}) for r in records]
    known = {known for _, metrics in found for known in metrics}
    require(
        metric in known,
        f"metric is {metric!r}, which no record{f' of {name!r}' if name else ''} has;"
        f" {nearest(metric, known)}",
    )
    having = [(at, metrics[metric]) for at, metrics in found if metric in metrics]
    return [at for at, _ in having], [value for _, value in having]


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


def _dress(axes: Axes, metric: str, against: Against, *, legend: bool) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.set_xlabel("simulated seconds" if against == "time" else against, color=MUTED)
    axes.set_title(metric.replace("_", " "), loc="left", color=INK, fontsize=11)
    if against == "round":
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(colors=MUTED)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    if legend:
        axes.legend(frameon=False, labelcolor=INK)


def colour(position: int) -> str:
    """Return the colour of the line at a position."""
    return _COLOURS[position % len(_COLOURS)]


def dashes(position: int) -> tuple[float, ...]:
    """Return the line's dashes and gaps in units of its width; empty for a solid line."""
    return _DASHES[(position + position // len(_COLOURS)) % len(_DASHES)]


def marker(position: int) -> str:
    """Return the shape of the marker at the line's end."""
    return _MARKERS[position % len(_MARKERS)]
