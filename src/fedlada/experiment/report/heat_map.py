"""The heat map of an attack's damage: attacks down, defences across, numbers in the fields."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..results.damage import Damage
from .figures import new_figure, styled, svg_of
from .labels import SIZE, width_of
from .style import GRID, HALO, INK, MUTED, colour

__all__ = ["heat_map", "lost"]

ROW, TOP, WIDEST = 0.27, 0.65, 1.5  # inches: of a row, above the rows, of the widest field
SLANT = 0.72  # of the length of a name, for its height and width when it is slanted
FULL = 30.0  # points lost that have the full colour
STRONGEST = 0.8  # the opacity of the full colour, through which numbers can be read
BETTER, WORSE = colour(0), colour(1)


def heat_map(found: Sequence[Damage], title: str, alt: str, width: float) -> str:
    """Draw the damage of each attack under each defence and return the figure as SVG."""
    from matplotlib.patches import Rectangle

    attacks = list(dict.fromkeys(one.attack for one in found))
    defences = list(dict.fromkeys(one.defence for one in found))
    left, named = (0.1 + max(map(width_of, names)) / 72 for names in (attacks, defences))
    field_width = min((width - left) / len(defences), WIDEST)
    slanted = named > field_width
    if slanted:  # the last name needs room beside the fields
        field_width = min((width - left - SLANT * named) / len(defences), WIDEST)
    top = TOP + (SLANT * named if slanted else 0)
    height = top + ROW * len(attacks) + 0.1
    with styled():
        figure = new_figure(height, width=width)
        box = (left / width, 0.1 / height, field_width * len(defences) / width)
        axes = figure.add_axes((*box, ROW * len(attacks) / height))
        axes.set_xlim(-0.5, len(defences) - 0.5)
        axes.set_ylim(len(attacks) - 0.5, -0.5)
        for place, one in enumerate(found):
            across, down = defences.index(one.defence), attacks.index(one.attack)
            mean = None if one.damage is None else one.damage.mean
            share = 1.0 if mean is None else min(1.0, abs(mean) / FULL)
            ink = BETTER if mean is not None and mean < 0 else WORSE
            field = Rectangle((across - 0.48, down - 0.46), 0.96, 0.92, linewidth=0)
            field.set(facecolor=ink, alpha=STRONGEST * share)
            axes.add_patch(field)
            text = lost(one) if width_of(lost(one)) < 72 * field_width else f"{lost(one)[:3]}."
            number = axes.text(across, down, text, ha="center", va="center_baseline", color=INK)
            number.set_gid(f"{HALO}{place}")
        axes.tick_params(length=0, pad=5, top=False, labeltop=True, labelbottom=False)
        axes.set_xticks(range(len(defences)), defences)
        if slanted:
            for tick in axes.get_xticklabels():
                tick.set(rotation=45, ha="left", rotation_mode="anchor")
        axes.set_yticks(range(len(attacks)), attacks, ha="left")
        axes.tick_params(axis="y", pad=72 * left)
        for tick in (*axes.get_xticklabels(), *axes.get_yticklabels()):
            tick.set_color(MUTED)
        for spine in axes.spines.values():
            spine.set(visible=True, color=GRID, linewidth=0.7)
        top_left = 0, 1 - 0.1 / height
        figure.text(*top_left, title, va="top", fontsize=SIZE + 0.5, fontweight="bold")
        return svg_of(figure, alt)


def lost(one: Damage) -> str:
    """Return the points lost as text."""
    return "diverged" if one.damage is None else replace(one.damage, count=1).text()
