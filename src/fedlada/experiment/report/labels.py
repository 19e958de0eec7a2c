"""Labels at the ends of lines instead of a legend, placed so that they do not overlap."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from .series import Series
from .style import HALO, colour

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["LETTER", "SIZE", "apart", "label_ends"]

SIZE = 9.0  # font size, in 1/72 inch
LETTER = 0.56 * SIZE  # a generous estimate of the width of a letter
LINE = 1.3 * SIZE  # the least distance between two labels


def label_ends(axes: Axes, series: Sequence[Series]) -> None:
    """Write each name beside the end of its line; above or below it if other lines go on."""
    axes.autoscale_view()  # sets the limits that the positions of the ends depend on
    unit = 72 / axes.figure.dpi
    box = axes.bbox
    ends = [unit * axes.transData.transform((s.x[-1], s.mean[-1])) for s in series]
    wide = [LETTER * len(s.name) for s in series]
    beside = [float(x) > unit * box.x1 - LINE for x, _ in ends]
    wanted = [
        (float(x) + 9, float(y), w)
        if right
        else (float(x) - w / 2, float(y) + (LINE if _on_top(s, series) else -LINE), w)
        for s, (x, y), w, right in zip(series, ends, wide, beside, strict=True)
    ]
    heights = apart(wanted, low=unit * box.y0, high=unit * box.y1)
    for k, line in enumerate(series):
        moved, ink = heights[k] - wanted[k][1], colour(line.position)
        label = axes.annotate(
            line.name,
            (line.x[-1], line.mean[-1]),
            xytext=(9 if beside[k] else 0, heights[k] - float(ends[k][1])),
            textcoords="offset points",
            va="center",
            ha="left" if beside[k] else "center",
            color=ink,
            arrowprops={
                "arrowstyle": "-",
                "color": ink,
                "linewidth": 0.6,
                "shrinkA": 0,
                "shrinkB": 2,
                "relpos": (0, 0.5) if beside[k] else (0.5, 0.5 - moved / abs(moved) / 2),
            }
            if abs(moved) > LINE / 3
            else None,
        )
        label.set_gid(f"{HALO}{k}")


def _on_top(line: Series, series: Sequence[Series]) -> bool:
    """Tell whether a line ends above the mean of the lines that go on."""
    others = [other.at(line.x[-1]) for other in series if other.x[-1] > line.x[-1]]
    return line.mean[-1] >= sum(others) / len(others) if others else True


def apart(labels: Sequence[tuple[float, float, float]], *, low: float, high: float) -> list[float]:
    """Return new heights y for labels (x, y, width), close to the old, without overlaps."""
    order = sorted(range(len(labels)), key=lambda i: labels[i][1])
    heights = [y for _, y, _ in labels]
    for _ in range(200):
        for k, i in enumerate(order):
            for j in order[k + 1 :]:
                (x, _, wide), (other, _, other_wide) = labels[i], labels[j]
                short = LINE - (heights[j] - heights[i])
                if short > 0 and x < other + other_wide and other < x + wide:
                    heights[i] -= short / 2
                    heights[j] += short / 2
        heights = [min(max(height, low), high) for height in heights]
    return heights
