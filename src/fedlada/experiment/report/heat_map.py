"""The heat map of an attack's damage: attacks down, defences across, numbers in the fields."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..results.damage import Damage
from .figures import WIDTH, new_figure, styled, svg_of
from .labels import SIZE
from .style import GRID, HALO, INK, MUTED, colour

__all__ = ["heat_map", "lost"]

ROW, TOP, LETTER = 0.27, 0.75, 0.075  # inches: of a row, above the rows, of a letter
FULL = 30.0  # points lost that have the full colour
STRONGEST = 0.8  # the opacity of the full colour, through which numbers can be read
BETTER, WORSE = colour(0), colour(1)


def heat_map(found: Sequence[Damage], title: str, alt: str) -> str:
    """Draw the damage of each attack under each defence and return the figure as SVG."""
    from matplotlib.patches import Rectangle

    attacks = list(dict.fromkeys(one.attack for one in found))
    defences = list(dict.fromkeys(one.defence for one in found))
    height = TOP + ROW * len(attacks) + 0.1
    left = 0.3 + LETTER * max(map(len, attacks))
    with styled():
        figure = new_figure(height)
        box = (left / WIDTH, 0.1 / height, (WIDTH - left - 0.1) / WIDTH)
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
            number = axes.text(across, down, lost(one), ha="center", va="center", color=INK)
            number.set_gid(f"{HALO}{place}")
        axes.set_xticks(range(len(defences)), defences)
        axes.set_yticks(range(len(attacks)), attacks)
        axes.tick_params(length=0, pad=5, top=False, labeltop=True, labelbottom=False)
        for tick in (*axes.get_xticklabels(), *axes.get_yticklabels()):
            tick.set_color(MUTED)
        for spine in axes.spines.values():
            spine.set(visible=True, color=GRID, linewidth=0.7)
        axes.set_title(title, loc="left", pad=24, fontsize=SIZE + 0.5, fontweight="bold", x=0)
        return svg_of(figure, alt)


def lost(one: Damage) -> str:
    """Return the points lost as text."""
    return "diverged" if one.damage is None else replace(one.damage, count=1).text()
