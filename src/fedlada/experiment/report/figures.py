"""Curves as SVG: panels with bands, and a label at the end of each line instead of a legend."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...errors import missing_extra
from .labels import LETTER, SIZE, label_ends
from .series import Series
from .style import GRID, HALO, INK, MUTED, colour, dashes, marker, tidied

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["WIDTH", "Panel", "curves", "new_figure", "plain_axes", "styled", "svg_of"]

WIDTH = 9.6  # inches


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
    between: tuple[float, float] | None = None
    """The limits of the y axis, if other panels share them."""


@contextmanager
def styled() -> Iterator[None]:
    """Apply the report's style to all drawing; raise an error if matplotlib is missing."""
    try:
        from matplotlib import rc_context
    except ModuleNotFoundError as error:
        raise missing_extra(error, "fedlada report", "fedlada[report]") from None
    with rc_context(
        {
            "svg.fonttype": "none",
            "text.parse_math": False,  # a name may hold dollar signs
            "svg.hashsalt": "fedlada",
            "font.size": SIZE,
            "text.color": INK,
            "axes.labelcolor": MUTED,
            "axes.edgecolor": MUTED,
            "xtick.color": MUTED,
            "ytick.color": MUTED,
        }
    ):
        yield


def curves(panels: Sequence[Panel], *, columns: int, height: float, alt: str) -> str:
    """Draw the panels row by row and return the figure as SVG."""
    with styled():
        down = -(-len(panels) // columns)
        figure = new_figure(height * down)
        label = max((len(s.name) for p in panels for s in p.series), default=0)
        left, right = 0.42, 0.25 + LETTER * label / 72
        across = WIDTH / columns
        for place, panel in enumerate(panels):
            row, column = divmod(place, columns)
            corner = (column * across + left, (down - 1 - row) * height + 0.5)
            extent = (across - left - right, height - 0.85)
            wide, high = WIDTH, down * height
            box = (corner[0] / wide, corner[1] / high, extent[0] / wide, extent[1] / high)
            _draw(figure.add_axes(box), panel)
        return svg_of(figure, alt)


def new_figure(height: float) -> Figure:
    """Return an empty figure; its height is in inches."""
    from matplotlib.figure import Figure

    return Figure(figsize=(WIDTH, height))


def svg_of(figure: Figure, alt: str) -> str:
    """Return the figure as an SVG element for HTML; equal figures give equal text."""
    text = io.StringIO()
    figure.savefig(text, format="svg", transparent=True, metadata={"Date": None})
    return tidied(text.getvalue(), alt)


def plain_axes(axes: Axes, title: str, across: str) -> None:
    """Set title and x label, and remove the parts of the axes that no reader needs."""
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.tick_params(length=0, pad=4)
    axes.tick_params(axis="x", length=3)
    axes.set_title(title, loc="left", pad=8, fontsize=SIZE + 0.5, fontweight="bold", x=0)
    axes.set_xlabel(across, loc="right")


def _draw(axes: Axes, panel: Panel) -> None:
    plain_axes(axes, panel.title, panel.across)
    axes.grid(axis="y", color=GRID, linewidth=0.7)
    axes.set_axisbelow(True)
    if panel.logarithmic:
        _logarithmic(axes)
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
    axes.locator_params(axis="x", integer=panel.whole)
    if panel.between is not None:
        axes.set_ylim(panel.between)
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
    label_ends(axes, panel.series)


def _logarithmic(axes: Axes) -> None:
    from matplotlib.ticker import LogLocator, NullLocator, StrMethodFormatter

    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 3.0)))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
