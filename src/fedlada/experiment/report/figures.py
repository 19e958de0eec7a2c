"""Figures as SVG: how all of them look, and curves over rounds, bytes and time.

Every figure has one width, and the same records give the same bytes.
"""

from __future__ import annotations

import io
import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from ...errors import missing_extra
from ...results.columns import CLIENTS
from ...results.plot import GRID, INK, MUTED, colour, dashes, marker
from ..results.scores import capital
from .page import Block, Figure, Text
from .runs import Runs

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure as Drawing

__all__ = [
    *("Panel", "Series", "curves", "measures", "new_figure", "plain_ticks", "score_panel"),
    *("scores", "series", "styled", "svg_of", "y_limits"),
]

WIDTH = 7.5  # inches, the width of a column of text
POINTS = 150  # maximum number of points of a line; more make a larger file, not a better figure
EARLY = 0.1  # the share of a line whose values may lie outside the y axis
LONGER = 5  # bytes and time are logarithmic if one line is this many times as long as another
FAR = 30  # a y axis is logarithmic if its largest value is this many times its smallest
DRIFT = {
    "drift": "Drift: mean ‖Δᵢ − mean Δ‖²",
    "consistency": "Consistency: mean ‖yᵢ − x‖²",
}
MEANING = (
    "Δᵢ is the displacement of client i in a round. Drift is how far the displacements lie from"
    " their mean. Consistency is how far the clients' models yᵢ lie from the server's new model x."
    " The two are equal if the server adds the mean displacement, as FedAvg does. They differ with"
    " another server rule or another server_lr."
)


@dataclass(frozen=True)
class Series:
    """A line and the band around it; ``position`` determines colour, dashes and marker."""

    name: str
    position: int
    x: tuple[float, ...]
    mean: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One pair of axes."""

    title: str
    across: str = "rounds"
    series: Sequence[Series]
    levels: Sequence[float] = ()
    """Values of y to mark with a dotted line."""


@contextmanager
def styled() -> Iterator[None]:
    """Apply the style of reports to all drawing; raise an error if matplotlib is missing."""
    try:
        from matplotlib import rc_context
    except ModuleNotFoundError as error:
        raise missing_extra(error, "fedlada report", "fedlada[report]") from None
    style = rc_context(
        {
            "svg.fonttype": "none",  # text stays text
            "svg.hashsalt": "fedlada",  # ids are the same in every run
            "text.parse_math": False,  # a name may contain dollar signs
            "font.sans-serif": ["DejaVu Sans", "Verdana", "Arial"],
            "font.size": 9,
            "text.color": INK,
            "axes.edgecolor": MUTED,
            "axes.labelcolor": MUTED,
            "axes.spines.right": False,
            "axes.spines.top": False,
            "axes.titlelocation": "left",
            "axes.titlesize": 9.5,
            "axes.titleweight": "bold",
            "grid.color": GRID,
            "legend.frameon": False,
            "xaxis.labellocation": "right",
            "xtick.color": MUTED,
            "ytick.color": MUTED,
        }
    )
    with style, warnings.catch_warnings():
        # The reader's fonts draw the text, so it does not matter which letters ours lack.
        warnings.filterwarnings("ignore", r"Glyph \d+ .* missing from", UserWarning)
        yield


def new_figure(height: float) -> Drawing:
    """Return an empty figure of the common width; the height is in inches."""
    from matplotlib.figure import Figure

    return Figure(figsize=(WIDTH, height), layout="constrained")


def svg_of(figure: Drawing, alt: str) -> str:
    """Return the figure as the text of an SVG file; equal figures give equal text."""
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None, "Title": alt})
    return text.getvalue()


def curves(panels: Sequence[Panel], alt: str) -> str:
    """Draw one panel, or several in two columns, with one legend for all."""
    columns, height = (1, 3.6) if len(panels) == 1 else (2, 2.5)
    rows = math.ceil(len(panels) / columns)
    with styled():
        figure = new_figure(height * rows)
        lines: dict[str, Artist] = {}
        for place, panel in enumerate(panels, 1):
            axes = figure.add_subplot(rows, columns, place)
            _draw(axes, panel)
            handles, names = axes.get_legend_handles_labels()
            lines |= dict(zip(names, handles, strict=True))
        figure.legend(list(lines.values()), list(lines), loc="outside right upper")
        return svg_of(figure, alt)


def _draw(axes: Axes, panel: Panel) -> None:
    axes.set(title=panel.title, xlabel=panel.across)
    axes.grid(axis="y", linewidth=0.7)
    axes.margins(x=0.01)
    for line in panel.series:
        ink = colour(line.position)
        if line.low != line.high:
            axes.fill_between(line.x, line.low, line.high, color=ink, alpha=0.16, linewidth=0)
        axes.plot(
            line.x,
            line.mean,
            color=ink,
            linewidth=1.5,
            dashes=dashes(line.position) or (None, None),
            marker=marker(line.position),
            markersize=4,
            markevery=[len(line.x) - 1],
            label=line.name,
        )
    for level in panel.levels:
        axes.axhline(level, color=MUTED, linewidth=0.8, linestyle=":", zorder=1)
    ends = [line.x[-1] for line in panel.series]
    if panel.across == "rounds":
        axes.locator_params(axis="x", integer=True)
    elif max(ends) > LONGER * min(ends) > 0:
        axes.set_xscale("log")
        axes.set_xlim(left=EARLY * min(ends))
        plain_ticks(axes.xaxis)
    low, high, logarithmic = y_limits(panel.series)
    if logarithmic:
        axes.set_yscale("log")
        plain_ticks(axes.yaxis)
    axes.set_ylim(low, high)


def y_limits(lines: Sequence[Series]) -> tuple[float, float, bool]:
    """Return the ends of a y axis, and whether it is logarithmic.

    The axis covers all values after the first tenth of each line.  It is logarithmic if these
    are positive and the largest is more than 30 times the smallest.
    """
    late = [
        y
        for line in lines
        for x, *band in zip(line.x, line.low, line.high, strict=True)
        for y in band
        if x >= EARLY * line.x[-1] and math.isfinite(y)
    ] or [0.0]
    low, high = min(late), max(late)
    if low > 0 and high > FAR * low:
        room = (high / low) ** 0.04
        return low / room, high * room, True
    room = 0.04 * (high - low) or 0.04 * abs(high) or 1.0
    return low - room, high + room, False


def plain_ticks(axis: Axis) -> None:
    """Label a logarithmic axis 0.5, 1, 2 rather than with powers of ten."""
    from matplotlib.ticker import LogLocator, NullLocator

    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter("{x:g}")


def series(
    runs: Runs, column: str, *, against: str = "round", factors: tuple[float, float] = (1.0, 1.0)
) -> list[Series]:
    """Return one series per drawn variant that has the column, the best variant first.

    Its points are the rounds at which the column was recorded. Both x and y are means over the
    runs that have the round, times ``factors``; the end of a band may have fewer runs than its
    beginning.
    """
    step, lines = _step(runs, column), []
    for variant in runs.drawn:
        points = (
            runs.rounds.filter(pl.col("variant") == variant)
            .select(
                "round",
                (factors[0] * pl.col(against)).alias("x"),
                (factors[1] * pl.col(column).cast(pl.Float64)).alias("y"),
            )
            .drop_nulls("y")
            .group_by("round")
            .agg(
                pl.col("x", "y").mean(),
                pl.col("y").min().alias("low"),
                pl.col("y").max().alias("high"),
            )
            .sort("round")
            .with_row_index()
        )
        kept = points.filter((pl.col("index") % step == 0) | (pl.col("index") == len(points) - 1))
        if len(kept):
            numbers = (tuple(map(float, kept[name])) for name in ("x", "y", "low", "high"))
            lines.append(Series(variant, runs.positions[variant], *numbers))
    return lines


def _recorded(runs: Runs, column: str) -> bool:
    return column in runs.rounds.columns and runs.rounds[column].count() > 0


def _step(runs: Runs, column: str) -> int:
    """Return n if every n-th point of a column is drawn."""
    known = runs.rounds.drop_nulls(column)
    longest = max(len(set(group["round"])) for _, group in known.group_by("variant"))
    return math.ceil(longest / POINTS)


def scores(runs: Runs) -> list[Block]:
    """Return the score against rounds, bytes and time, one figure each, if they are recorded.

    If all runs have simulated time, there is a figure of that, too.
    """
    if not runs.evaluated:
        return []
    sent, took = runs.bytes_unit, runs.time_unit
    axes: tuple[tuple[str, str, str, float], ...] = (
        ("rounds", "rounds", "round", 1.0),
        ("bytes", f"{sent.name} sent, both ways", "total_bytes", sent.factor),
        ("time", f"{took.name} of training", "total_seconds", took.factor),
    )
    if (simulated := runs.simulated_unit) is not None:
        axes += (("simulated", simulated.name, "time", simulated.factor),)
    return [Text(_bands(runs)), *(_score(runs, *axis) for axis in axes if _recorded(runs, axis[2]))]


def score_panel(
    runs: Runs, title: str, *, across: str = "rounds", column: str = "round", factor: float = 1.0
) -> Panel:
    """Return the scores of all drawn variants against a column, with the targets as levels."""
    return Panel(
        title=title,
        across=across,
        series=series(runs, "score", against=column, factors=(factor, runs.scale.factor)),
        levels=[runs.scale.factor * target for target in runs.targets],
    )


def _score(runs: Runs, name: str, across: str, column: str, factor: float) -> Figure:
    title = f"{capital(runs.measure)} on the {runs.split} split{runs.heading}"
    panel = score_panel(runs, title, across=across, column=column, factor=factor)
    lines = panel.series
    ends = ", ".join(f"{line.name} {line.mean[-1]:.{runs.scale.digits - 1}f}" for line in lines)
    alt = f"{panel.title}, against {across}. At the end: {ends}."
    return Figure(
        name=f"{runs.objective.score}-{name}",
        svg=curves([panel], alt),
        alt=alt,
        caption="Dotted lines are the targets." if runs.targets else "",
        folded="" if name == "rounds" else f"The same against {across}",
    )


def _bands(runs: Runs) -> str:
    """Say how the curves of all figures are made."""
    step = _step(runs, "score")
    points = "every evaluation" if step == 1 else f"one in {step} evaluations"
    text = "Each line is one run, so there are no bands."
    if len(runs.ends) > len(runs.variants):
        part = " of those that have reached the round" if runs.unfinished else ""
        text = f"Lines are means over seeds{part}. Bands reach from the smallest to the largest."
    text += f" They show {points}, not smoothed."
    text += " The y axis covers all values after the first tenth of the rounds."
    if len(runs.drawn) < len(runs.variants):
        text += f" Only the {len(runs.drawn)} best variants are drawn."
    return text


def measures(runs: Runs) -> list[Block]:
    """Return figures of the other metrics, drift and consistency, as far as recorded."""
    factors = {f"train_{runs.objective.score}": runs.scale.factor}
    blocks: list[Block] = []
    for name, titles in {"losses": _losses(runs), "drift": DRIFT}.items():
        panels = [
            Panel(title=title, series=series(runs, column, factors=(1.0, factors.get(column, 1.0))))
            for column, title in titles.items()
            if _recorded(runs, column)
        ]
        if panels:
            alt = f"Against rounds: {', '.join(panel.title for panel in panels)}."
            caption = MEANING if name == "drift" else ""
            blocks.append(Figure(name=name, svg=curves(panels, alt), alt=alt, caption=caption))
    return blocks


def _losses(runs: Runs) -> dict[str, str]:
    """Return titles by column: all metrics except the score above, then the clients' loss."""
    objective = runs.objective
    data = {
        "test": "the test split",
        "validation": "the validation split",
        "train": "training data",
    }
    titles = {
        f"{split}_{name}": f"{capital(objective.title_of(name))} on {where}"
        for split, where in data.items()
        for name in objective.metrics
        if split == "train" or name != objective.score
    }
    titles[f"train_{objective.score}"] += runs.heading
    return titles | {f"{CLIENTS}loss": "Clients' loss while training"}
