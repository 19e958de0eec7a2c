"""The problems of a report beside each other: every variant on every problem."""

from __future__ import annotations

from collections.abc import Mapping

from ..results.scores import scored
from .figures import curves, score_panel
from .page import Block, Figure, Table
from .runs import Runs

__all__ = ["overview"]

FACETS = 6  # maximum number of problems in the figure


def overview(problems: Mapping[str, Runs]) -> list[Block]:
    """Return the final scores of all variants by problem, and their curves."""
    variants = dict.fromkeys(v for runs in problems.values() for v in runs.by_score)
    measures = dict.fromkeys(f"{runs.measure}{runs.heading}" for runs in problems.values())
    one = len(measures) == 1
    table = Table(
        caption=f"Final {next(iter(measures))}" if one else "Final score",
        columns=(
            "algorithm",
            *(n if one else f"{n}: {r.measure}{r.heading}" for n, r in problems.items()),
        ),
        rows=tuple(
            (variant, *(_cell(runs, variant) for runs in problems.values())) for variant in variants
        ),
        note="± is the standard deviation over seeds. Runs are compared within a problem only; its"
        " part of the report says how sure a difference is.",
    )
    shown = dict(list(problems.items())[:FACETS])
    panels = [score_panel(runs, name) for name, runs in shown.items() if runs.evaluated]
    if not panels:
        return [table]
    alt = f"Scores against rounds on {'; '.join(shown)}."
    more = len(problems) - len(shown)
    caption = "Each panel is a problem; a variant has the same line in all."
    caption += f" {more} more problems are not drawn." if more else ""
    figure = Figure(name="problems", svg=curves(panels, alt), alt=alt, caption=caption)
    return [table, figure]


def _cell(runs: Runs, variant: str) -> str:
    ends = runs.of(variant)
    return scored(ends["final"], runs.scale) if len(ends) else "–"
