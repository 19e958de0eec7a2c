"""The part and the scale of the score's axes that are drawn, so that differences are seen.

Rules that look at the lines, and never at who is ahead:

- The score is drawn by the logarithm of what is missing to 100 % if the best line ends at 90 % or
  more: from 90 to 95 % is then as far as from 80 to 90 %.
- Otherwise the axis begins where a tenth of the lines lies below it, but not above the end of any
  line, and only if that saves a sixth of the height or more.
- Rounds, bytes and time are logarithmic if half of the lines have made 90 % of their rise within
  the first quarter of the rounds: equal distances are then equal ratios.

If a lower score is better, the same rules hold upside down: the axis may end below the beginning
of the lines, and there is no logarithm of what is missing, as nothing is known to be perfect.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ...client.scale import PERCENT, Scale
from .series import Series

__all__ = ["Window", "window"]

HIGH = 90.0  # percent, from which errors are drawn
BELOW = 0.1  # the share of the lines that may lie below the axis
WORTH = 1 / 6  # the share of the height that must be saved
EARLY = 0.25  # the share of the rounds
RISEN = 0.9  # the share of the rise
ROOM = 0.03  # the share of the height that stays free above and below
PLACES = 100  # at which each line is looked at


@dataclass(frozen=True)
class Window:
    """What is drawn of the lines; scores in their unit."""

    low: float
    high: float
    errors: bool
    """Whether the scale of the score is logarithmic in what is missing to 100 %."""
    ratios: bool
    """Whether the axis of rounds, bytes or time is logarithmic."""
    cut: bool
    """Whether some of the lines lies beyond the axis, at its worse end."""
    scale: Scale = PERCENT

    @property
    def title(self) -> str:
        """What is added to the title of the figure."""
        if self.errors:
            return " (log error)"
        if not self.cut:
            return ""
        return f" (from {self.low:g} on)" if self.scale.higher else f" (up to {self.high:g})"

    def caption(self, measure: str) -> str:
        """Return what a reader must know of the axes."""
        parts = []
        if self.errors:
            parts.append(
                f"Since the best line ends at {HIGH:g} % or more, {measure} is drawn by the"
                " logarithm of the error, 100 % minus it."
            )
        if self.cut:
            ends = (
                ("begins", self.low, "below") if self.scale.higher else ("ends", self.high, "above")
            )
            parts.append(
                f"The axis {ends[0]} at {ends[1]:g} {self.scale.unit}: at most {100 * BELOW:g} % of"
                f" the lines' length lies {ends[2]}."
            )
        if self.ratios:
            parts.append(
                f"Since most lines have made {100 * RISEN:g} % of their rise in the first"
                " quarter of the rounds, the axis below is logarithmic: equal distances are equal"
                " ratios."
            )
        return " ".join(parts)


def window(lines: Sequence[Series], scale: Scale = PERCENT) -> Window:
    """Choose the window for lines of a score, in its unit, against rounds."""
    if not scale.higher:
        found = _window([_upside_down(line) for line in lines], replace(scale, most=None))
        return replace(found, low=-found.high, high=-found.low, scale=scale)
    return _window(lines, scale)


def _upside_down(line: Series) -> Series:
    mean, low, high = (tuple(-y for y in ys) for ys in (line.mean, line.high, line.low))
    return replace(line, mean=mean, low=low, high=high)


def _window(lines: Sequence[Series], scale: Scale) -> Window:
    ratios = statistics.median(map(_risen, lines)) <= EARLY
    bottom, top = min(min(s.low) for s in lines), max(max(s.high) for s in lines)
    share = scale.unit == "%" and scale.most == 1.0
    if share and max(s.mean[-1] for s in lines) >= HIGH and top < 100 and bottom >= 0:
        room = max(((100 - bottom) / (100 - top)) ** ROOM, 1.01)
        low, high = 100 - (100 - bottom) * room, 100 - (100 - top) / room
        return Window(max(low, 0), high, errors=True, ratios=ratios, cut=False, scale=scale)
    room = ROOM * (top - bottom) or 1.0
    low = _floor(lines, ratios, scale.tick)
    cut = low - bottom >= WORTH * (top - bottom)
    start = low if cut else bottom - room
    return Window(start, top + room, errors=False, ratios=ratios, cut=cut, scale=scale)


def _risen(line: Series) -> float:
    """Return after which share of its rounds a line has made most of its rise."""
    first, best = line.mean[0], max(line.mean)
    enough = first + RISEN * (best - first)
    return next(x for x, y in zip(line.x, line.mean, strict=True) if y >= enough) / line.x[-1]


def _floor(lines: Sequence[Series], ratios: bool, tick: float) -> float:
    """Return a multiple of a tick that a tenth of the lines, by width as drawn, lies below."""
    heights = []
    for line in lines:
        start, end = line.x[0], line.x[-1]
        for k in range(PLACES):
            share = k / (PLACES - 1)
            x = start * (end / start) ** share if ratios else start + share * (end - start)
            heights.append(line.at(x))
    heights.sort()
    low = min(heights[int(BELOW * len(heights))], *(line.mean[-1] for line in lines))
    return tick * math.floor(low / tick)
