"""Curves as SVG: panels with bands, and a label at the end of each line instead of a legend."""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...errors import missing_extra
from .labels import SIZE, label_ends, width_of
from .series import Series
from .style import GRID, HALO, INK, MUTED, colour, dashes, marker, tidied

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["NARROW", "WIDTH", "Panel", "curves", "new_figure", "plain_axes", "styled", "svg_of"]

WIDTH = 8.0  # inches, the width of the page's column
NARROW = 4.2  # inches, for screens on which the other would be too small to read
LEFT = 0.4  # inches, for the numbers of the y axis


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One pair of axes."""

    title: str
    across: str
    series: Sequence[Series]
    levels: Sequence[tuple[float, str]] = ()
    """Values of y to mark with a line, each with its label."""
    whole: bool = False
    """Use integer ticks on the x axis."""
    logarithmic: bool = False
    """Whether the y axis is logarithmic."""
    errors: bool = False
    """Whether the y axis is logarithmic in 100 - y."""
    ratios: bool = False
    """Whether the x axis is logarithmic."""
    between: tuple[float, float] | None = None
    """The limits of the y axis, if they are not those of the series."""


@contextmanager
def styled() -> Iterator[None]:
    """Apply the report's style to all drawing; raise an error if matplotlib is missing."""
    try:
        from matplotlib import rc_context
    except ModuleNotFoundError as error:
        raise missing_extra(error, "fedlada report", "fedlada[report]") from None
    styles = rc_context(
        {
            "svg.fonttype": "none",
            "text.parse_math": False,  # a name may hold dollar signs
            "font.size": SIZE,
            "text.color": INK,
            "axes.labelcolor": MUTED,
            "axes.edgecolor": MUTED,
            "xtick.color": MUTED,
            "ytick.color": MUTED,
        }
    )
    with styles, warnings.catch_warnings():
        # Text stays text in the SVG: its letters are those of the reader's fonts, not of ours.
        warnings.filterwarnings("ignore", r"Glyph \d+ .* missing from", UserWarning)
        yield


def curves(
    panels: Sequence[Panel],
    *,
    columns: int,
    height: float,
    alt: str,
    width: float = WIDTH,
    labels: bool = True,
) -> str:
    """Draw the panels row by row and return the figure as SVG; ``labels`` name the lines."""
    with styled():
        down = -(-len(panels) // columns)
        figure = new_figure(height * down, width=width)
        longest = max((width_of(s.name) for p in panels for s in p.series), default=0)
        right = 0.25 + longest / 72 if labels else 0.12
        across = width / columns
        for place, panel in enumerate(panels):
            row, column = divmod(place, columns)
            corner = (column * across + LEFT, (down - 1 - row) * height + 0.5)
            extent = (across - LEFT - right, height - 0.85)
            high = down * height
            box = (corner[0] / width, corner[1] / high, extent[0] / width, extent[1] / high)
            axes = figure.add_axes(box)
            _draw(axes, panel)
            if labels:
                label_ends(axes, panel.series)
            _numbers(axes)
        return svg_of(figure, alt)


def new_figure(height: float, *, width: float = WIDTH) -> Figure:
    """Return an empty figure; height and width are in inches."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height))


def svg_of(figure: Figure, alt: str) -> str:
    """Return the figure as an SVG element for HTML; equal figures give equal text."""
    from matplotlib import rc_context

    text = io.StringIO()
    # No two figures of a page share an id: what belongs to a hidden one would be missing.
    with rc_context({"svg.hashsalt": f"{alt}{figure.get_figwidth()}"}):
        figure.savefig(text, format="svg", transparent=True, metadata={"Date": None})
    return tidied(text.getvalue(), alt)


def plain_axes(axes: Axes, title: str, across: str, *, left: float = 0.0) -> None:
    """Set title and x label, and remove the parts of the axes that no reader needs.

    The title begins ``left`` inches left of the axes.
    """
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.tick_params(length=0, pad=4)
    axes.tick_params(axis="x", length=3)
    wide = axes.bbox.width / axes.figure.dpi
    axes.set_title(title, loc="left", pad=8, fontsize=SIZE + 0.5, fontweight="bold", x=-left / wide)
    axes.set_xlabel(across, loc="right")


def _draw(axes: Axes, panel: Panel) -> None:
    plain_axes(axes, panel.title, panel.across, left=LEFT)
    axes.grid(axis="y", color=GRID, linewidth=0.7)
    axes.set_axisbelow(True)
    for line in panel.series:
        ink = colour(line.position)
        if any(low < high for low, high in zip(line.low, line.high, strict=True)):
            axes.fill_between(line.x, line.low, line.high, color=ink, alpha=0.16, linewidth=0)
        axes.plot(
            line.x,
            line.mean,
            color=ink,
            linewidth=1.5,
            linestyle=(0, dashes(line.position)) if dashes(line.position) else "-",
        )
        axes.plot(line.x[-1:], line.mean[-1:], marker(line.position), color=ink, markersize=4)
    axes.margins(x=0.01)
    _scale(axes, panel)
    for place, (height, text) in enumerate(panel.levels):
        low, high = axes.get_ylim()
        if low < height < high:
            axes.axhline(height, color=MUTED, linewidth=0.8, linestyle=(0, (1, 2)), zorder=1)
            level = axes.annotate(
                text,
                (0, height),
                xycoords=axes.get_yaxis_transform(),
                xytext=(3, 2),
                textcoords="offset points",
                color=MUTED,
                fontsize=SIZE - 1.5,
            )
            level.set_gid(f"{HALO}{place}")


def _scale(axes: Axes, panel: Panel) -> None:
    """Set scale, limits and ticks of both axes."""
    from matplotlib.ticker import LogLocator, NullLocator, StrMethodFormatter

    if panel.ratios:
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    else:
        axes.locator_params(axis="x", integer=panel.whole)
    if panel.logarithmic:
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 3.0)))
        axes.yaxis.set_minor_locator(NullLocator())
    if panel.between is not None:
        axes.set_ylim(panel.between)
    if panel.errors:
        _errors(axes)


def _errors(axes: Axes) -> None:
    """Make the y axis, in percent, logarithmic in what is missing to 100."""
    import numpy as np

    low, high = axes.get_ylim()
    axes.set_yscale(
        "function",
        functions=(lambda y: -np.log(np.maximum(100 - y, 1e-9)), lambda z: 100 - np.exp(-z)),
    )
    axes.set_ylim(low, high)
    for steps in ((10, 5, 2), range(10, 1, -1)):  # the second if there is not much between
        ticks = [100 - n * 10.0**k for k in (1, 0, -1, -2) for n in steps]
        inside = [tick for tick in ticks if low <= tick <= high]
        axes.set_yticks(inside)
        if len(inside) > 2:
            break


def _numbers(axes: Axes) -> None:
    """Write the numbers of the y axis from the left edge of the panel on, as text begins there."""
    low, high = axes.get_ylim()
    ticks = [float(tick) for tick in axes.get_yticks() if low <= tick <= high]
    axes.set_yticks(ticks, [f"{tick:g}".replace("-", "−") for tick in ticks], ha="left")
    axes.set_ylim(low, high)
    axes.tick_params(axis="y", pad=72 * LEFT)
