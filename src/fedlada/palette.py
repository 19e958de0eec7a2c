"""Colours, dashes and markers of the lines in figures, on a light and on a dark background.

The hues are those of Okabe and Ito, which most colour-blind readers can tell apart, with the pale
ones darkened.  Lines never differ in colour alone.
"""

from __future__ import annotations

__all__ = ["GRID", "INK", "LINES", "MUTED", "PAPER", "colour", "dashes", "marker"]

PAPER, INK, MUTED, GRID = "#ffffff", "#1f2328", "#59636e", "#dfe3e8"
LINES = (  # colours on a light and on a dark background
    ("#0072b2", "#58b0f0"),
    ("#d55e00", "#ff8f4a"),
    ("#009e73", "#2fcb9d"),
    ("#b5538c", "#e89ac6"),
    ("#a67c00", "#f0d04c"),
    ("#3d444d", "#d3d9e0"),
    ("#3f9bd8", "#9bdcff"),
    ("#7a4a21", "#cfa27a"),
    ("#6247c4", "#b8a6ff"),
    ("#a3123a", "#ff8aa6"),
)
_DASHES: tuple[tuple[float, ...], ...] = ((), (5, 2), (7, 2, 1.5, 2), (1.5, 1.8))
_MARKERS = ("o", "s", "^", "D", "v", "P")


def colour(position: int) -> str:
    """Return the colour of the line at a position, on a light background."""
    return LINES[position % len(LINES)][0]


def dashes(position: int) -> tuple[float, ...]:
    """Return the line's dashes and gaps in units of its width; empty for a solid line."""
    return _DASHES[(position + position // len(LINES)) % len(_DASHES)]


def marker(position: int) -> str:
    """Return the shape of the marker at the line's end."""
    return _MARKERS[position % len(_MARKERS)]
