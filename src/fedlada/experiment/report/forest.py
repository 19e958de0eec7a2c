"""The figure of paired comparisons: dots with their intervals, and a line at no difference."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .blocks import Figure
from .figures import NARROW, WIDTH, new_figure, plain_axes, styled, svg_of
from .labels import width_of
from .pairs import CONFIDENCE, Interval, Measure, interval, measures_of
from .runs import Runs, percent
from .style import GRID, INK, colour, marker

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["forest"]

SHOWN = 3  # maximum number of panels: the final score, and the last targets that were reached
ROWS = 15  # maximum number of variants; with more there is only the table
ROW, GAP = 0.3, 0.2  # in inches: the height of a row, the space between panels


def forest(runs: Runs, reference: str) -> Figure | None:
    """Return differences of the final score and ratios of rounds; None without any interval."""
    others = [variant for variant in runs.by_score if variant != reference]
    final, _, *ratios = measures_of(runs)
    found = {m: [interval(runs, v, reference, m) for v in others] for m in (final, *ratios)}
    drawn = {m: intervals for m, intervals in found.items() if any(map(_known, intervals))}
    if final not in drawn or len(others) > ROWS:
        return None
    measures = [final, *[m for m in drawn if m is not final][1 - SHOWN :]]
    alt = f"Against {reference}: " + "; ".join(
        f"{m.name}: " + ", ".join(f"{v} {m.text(i)}" for v, i in zip(others, found[m], strict=True))
        for m in measures
    )
    drawings = {
        width: _drawing(runs, reference, {m: found[m] for m in measures}, others, width, alt)
        for width in (WIDTH, NARROW)
    }
    return Figure(
        name="pairs",
        svg=drawings[WIDTH],
        narrow=drawings[NARROW],
        alt=alt,
        caption=f"Against {reference} (the line): the means and {percent(CONFIDENCE)} intervals of"
        " the tables below. An interval that crosses the line leaves open who is better.",
    )


def _drawing(
    runs: Runs,
    reference: str,
    found: dict[Measure, list[Interval | None]],
    others: list[str],
    width: float,
    alt: str,
) -> str:
    """Draw one panel per measure, side by side or, if the drawing is narrow, one below another."""
    columns = len(found) if width == WIDTH else 1
    down = len(found) // columns
    row = 0.85 + ROW * len(others)
    left = 0.15 + max(map(width_of, others)) / 72
    each = (width - left) / columns
    places = [runs.positions[variant] for variant in others]
    with styled():
        figure = new_figure(down * row, width=width)
        for place, (measure, intervals) in enumerate(found.items()):
            line, column = divmod(place, columns)
            x, y = left + column * each, (down - 1 - line) * row + 0.48
            high = down * row
            box = (x / width, y / high, (each - GAP) / width, ROW * len(others) / high)
            axes = figure.add_axes(box)
            first = left if column == 0 else 0.0
            titles = _titles(runs, measure, reference)
            _draw(axes, measure, intervals, places, titles, first)
            names = others if column == 0 else [""] * len(others)
            axes.set_yticks(range(len(others)), names, ha="left")
            axes.tick_params(axis="y", pad=72 * left)
            for text, position in zip(axes.get_yticklabels(), places, strict=True):
                text.set_color(colour(position))
        return svg_of(figure, alt)


def _known(found: Interval | None) -> bool:
    return found is not None and found.low is not None


def _titles(runs: Runs, measure: Measure, reference: str) -> tuple[str, str]:
    """Return the title of a panel, and what its axis shows."""
    if measure.ratio:
        return f"Rounds {measure.name}", f"times those of {reference}"
    return f"Final {runs.measure}", f"{runs.scale.difference} more than {reference}"


def _draw(
    axes: Axes,
    measure: Measure,
    found: list[Interval | None],
    positions: list[int],
    titles: tuple[str, str],
    left: float,
) -> None:
    if measure.ratio:
        axes.set_xscale("log")
    plain_axes(axes, *titles, left=left)
    axes.spines["bottom"].set_visible(False)
    axes.grid(axis="x", color=GRID, linewidth=0.7)
    axes.set_axisbelow(True)
    axes.axvline(1 if measure.ratio else 0, color=INK, linewidth=1)
    axes.set_ylim(len(found) - 0.5, -0.5)
    for row, (one, position) in enumerate(zip(found, positions, strict=True)):
        if one is not None:
            ink = colour(position)
            if one.low is not None and one.high is not None:
                axes.plot([one.low, one.high], [row, row], color=ink, linewidth=1.6)
            axes.plot([one.mean], [row], marker(position), color=ink, markersize=5.5)
    if measure.ratio:
        _decimal(axes)


def _decimal(axes: Axes) -> None:
    """Label ratios as 0.5, 1, 2 rather than as powers of ten."""
    from matplotlib.ticker import FixedLocator, NullLocator

    low, high = axes.get_xlim()
    steps = [t for t in (0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50) if low <= t <= high]
    axes.xaxis.set_major_locator(FixedLocator(steps))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xticklabels([f"{step:g}" for step in steps])
