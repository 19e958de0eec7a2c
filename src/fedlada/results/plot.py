"""``fedlada.plot``: metrics of runs by rounds, as a figure for notebooks, scripts and papers."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple, cast, get_args

from ..errors import FedladaError, missing_extra, require, require_known
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

Runs = Run | Sequence[Run]
"""A run, or several of one kind, such as one for each seed."""

Against = Literal["round", "time"]
Points = Mapping[int, tuple[float, float]]
"""Where each round is, and its value."""


class _Line(NamedTuple):
    """The means over runs of one kind, and their smallest and largest values."""

    across: list[float]
    mean: list[float]
    low: list[float]
    high: list[float]


def plot(
    runs: Runs | Mapping[str, Runs], *, metric: str | None = None, against: Against = "round"
) -> Figure:
    """Draw a metric of one run, or of several runs by name, and return matplotlib's figure.

    A list of runs, such as one for each seed, is one line, their mean; a band reaches from the
    smallest value to the largest.  A notebook shows the figure; ``figure.savefig("curve.png")``
    writes it.  ``metric`` is a name in the records' ``metrics`` or ``client_metrics``.  By default
    it is the score of the run's evaluation, or the last metric of ``evaluate``, or the last that
    clients report.  Runs with devices can be drawn ``against="time"``, in simulated seconds.

    >>> plot({"fedavg": first, "fedlada": [seed0, seed1]}, metric="test_accuracy")
    """
    given: Mapping[str, Runs] = runs if isinstance(runs, Mapping) else {"": runs}
    require(bool(given), "runs are {}; give one run or more, by name")
    named = {name: _of_one_kind(each, name) for name, each in given.items()}
    chosen = metric if metric is not None else _score(named)
    require(
        against in get_args(Against),
        f"against is {against!r}; it must be one of {', '.join(get_args(Against))}",
    )
    lines = {
        name: _line([_points(run, chosen, name, against) for run in each])
        for name, each in named.items()
    }
    figure = _new_figure()
    axes = figure.add_subplot()
    for position, (name, line) in enumerate(lines.items()):
        if len(named[name]) > 1:
            axes.fill_between(
                line.across, line.low, line.high, color=colour(position), alpha=0.16, linewidth=0
            )
        axes.plot(
            line.across,
            line.mean,
            color=colour(position),
            dashes=dashes(position) or (None, None),
            linewidth=1.6,
            marker=marker(position),
            markersize=4,
            markevery=max(1, len(line.across) // 12),
            label=name,
        )
    title = chosen.replace("_", " ") + _bands([len(each) for each in named.values()])
    _dress(axes, title, against, legend=isinstance(runs, Mapping))
    return figure


def _of_one_kind(runs: Runs, name: str) -> list[Run]:
    """Return the runs of one line."""
    if not isinstance(runs, list | tuple) or any(isinstance(each, RoundRecord) for each in runs):
        return [cast(Run, runs)]
    require(
        len(runs) > 0,
        f"there is no run and no record in {_called(name)}, an empty list; give a Simulation that"
        " has run, its records, or a list with a run for each seed",
    )
    return list(runs)


def _called(name: str) -> str:
    return f"run {name!r}" if name else "the run"


def _bands(sizes: Sequence[int]) -> str:
    """Say what a line and its band are, if some line is of several runs."""
    least, most = min(sizes), max(sizes)
    if most == 1:
        return ""
    number = f"{most}" if least == most else f"{least} to {most}"
    return f": mean of {number} runs, and the smallest and the largest"


def _line(runs: Sequence[Points]) -> _Line:
    """Return the line of runs of one kind; each round counts the runs that recorded it."""
    line = _Line([], [], [], [])
    for round in sorted({round for points in runs for round in points}):
        having = [points[round] for points in runs if round in points]
        values = [value for _, value in having]
        line.across.append(sum(at for at, _ in having) / len(having))
        line.mean.append(sum(values) / len(values))
        line.low.append(min(values))
        line.high.append(max(values))
    return line


def _records(run: Run, name: str) -> Sequence[RoundRecord]:
    records = getattr(run, "records", run)
    if isinstance(records, str) or not isinstance(records, Sequence):
        raise FedladaError(
            f"a run to plot is {run!r:.100}; give a Simulation, its records, or several of them by"
            " name or as a list, one for each seed; fedlada report draws the runs in a directory"
        )
    require(
        len(records) > 0 and all(isinstance(record, RoundRecord) for record in records),
        f"there is no record in {_called(name)}: iterate over it, or call run(), and plot then",
    )
    return records


def _score(named: Mapping[str, Sequence[Run]]) -> str:
    """Return the metric by which the first run is judged."""
    name, (run, *_) = next(iter(named.items()))
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
    """Return the values of a metric, and the rounds or the times at which it was recorded."""
    records = _records(run, name)
    require(
        against == "round" or all(record.time is not None for record in records),
        f"there is no simulated time in {_called(name)}; give simulate"
        " devices=fedlada.engines.Devices()",
    )
    found = {r.round: (getattr(r, against), {**r.client_metrics, **r.metrics}) for r in records}
    known = {known for _, metrics in found.values() for known in metrics}
    whose = f" of {name!r}" if name else ""
    require_known(metric, known, f"metric is {metric!r}, which no record{whose} has")
    return {
        round: (at, metrics[metric]) for round, (at, metrics) in found.items() if metric in metrics
    }


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


def _dress(axes: Axes, title: str, against: Against, *, legend: bool) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.set_xlabel("simulated seconds" if against == "time" else against, color=MUTED)
    axes.set_title(title, loc="left", color=INK, fontsize=11)
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
