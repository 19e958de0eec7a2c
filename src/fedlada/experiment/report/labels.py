"""Labels at the ends of lines instead of a legend, placed so that they do not overlap."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise, product
from typing import TYPE_CHECKING
from unicodedata import east_asian_width

from .series import Series
from .style import HALO, colour

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["SIZE", "apart", "label_ends", "width_of"]

SIZE = 9.0  # font size, in 1/72 inch
LETTER = 0.56 * SIZE  # a generous estimate of the width of a letter
LINE = 1.3 * SIZE  # the least distance between two labels
GAP = 9.0  # between the end of a line and the label beside it

Box = tuple[float, float, float]  # left, middle height and width of a label
Place = tuple[float, float]


def width_of(text: str) -> float:
    """Return about how wide a text is, in 1/72 inch; letters of East Asia are twice as wide."""
    return sum(SIZE if east_asian_width(letter) in "WF" else LETTER for letter in text)


def label_ends(axes: Axes, series: Sequence[Series]) -> None:
    """Write each name beside the end of its line; where other lines go on, in a free place."""
    axes.autoscale_view()  # sets the limits that the positions of the ends depend on
    unit, box = 72 / axes.figure.dpi, axes.bbox
    low, high = unit * box.y0, unit * box.y1
    paths = [
        [(unit * float(x), unit * float(y)) for x, y in axes.transData.transform(points)]
        for points in (list(zip(s.x, s.mean, strict=True)) for s in series)
    ]
    beside = [k for k, path in enumerate(paths) if path[-1][0] > unit * box.x1 - LINE]
    wanted = {k: (paths[k][-1][0] + GAP, paths[k][-1][1], width_of(series[k].name)) for k in beside}
    heights = apart(list(wanted.values()), low=low, high=high)
    boxes = dict(wanted)
    for (k, (left, _, width)), height in zip(wanted.items(), heights, strict=True):
        boxes[k] = left, height, width
    steps = [point for path in paths for point in _close(path)]
    for k in (k for k in range(len(series)) if k not in wanted):
        frame = (unit * box.x0, low, unit * box.x1, high)
        boxes[k] = _free(paths[k][-1], width_of(series[k].name), steps, [*boxes.values()], frame)
    for k, line in enumerate(series):
        _write(axes, line, paths[k][-1], boxes[k], k)


def _write(axes: Axes, line: Series, end: Place, box: Box, number: int) -> None:
    """Write the name of a line into a box, with a thin line to it if the box is far away."""
    left, height, width = box
    ink, up = colour(line.position), height - end[1]
    beside = left > end[0] + GAP / 2
    far = abs(up) > (LINE / 3 if beside else 1.5 * LINE)
    near = 0.0 if beside else min(max((end[0] - left) / width, 0.0), 1.0)
    label = axes.annotate(
        line.name,
        (line.x[-1], line.mean[-1]),
        xytext=(left - end[0], up),
        textcoords="offset points",
        va="center",
        ha="left",
        color=ink,
        arrowprops={
            "arrowstyle": "-",
            "color": ink,
            "linewidth": 0.6,
            "shrinkA": 0,
            "shrinkB": 2,
            "relpos": (near, 0.5 if beside else float(up < 0)),
        }
        if far
        else None,
    )
    label.set_gid(f"{HALO}{number}")


def _free(
    end: Place,
    width: float,
    lines: Sequence[Place],
    taken: Sequence[Box],
    frame: tuple[float, float, float, float],
) -> Box:
    """Return the place near the end of a line where a label covers least."""
    x0, y0, x1, y1 = frame

    def covered(box: Box) -> float:
        left, height, wide = box
        points = sum(left < x < left + wide and abs(y - height) < LINE / 2 for x, y in lines)
        labels = sum(
            abs(y - height) < LINE and left < x + w and x < left + wide for x, y, w in taken
        )
        outside = left < x0 or left + wide > x1 or not y0 < height < y1
        return points + 1000 * labels + 1000 * outside

    away = [sign * k * LINE for k in (1, 1.5, 2, 2.5, 3, 4) for sign in (1, -1)]
    shares = (0.5, 0.9, 0.1)
    places = [(end[0] - s * width, end[1] + up, width) for up, s in product(away, shares)]
    return min(places, key=covered)


def _close(path: Sequence[Place]) -> list[Place]:
    """Return points on a line, so close that none of it passes unseen through a label."""
    points = []
    for (x, y), (to_x, to_y) in pairwise(path):
        count = int(max(abs(to_x - x), abs(to_y - y)) // 3) + 1
        points += [(x + k * (to_x - x) / count, y + k * (to_y - y) / count) for k in range(count)]
    return [*points, path[-1]]


def apart(labels: Sequence[Box], *, low: float, high: float) -> list[float]:
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
