"""The defences that ``fedlada attack`` compares: changes to the plan of a federation."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from ...server.guard import Guard
from ...server.mean import Mean
from ...server.plan import Plan

__all__ = ["DEFENCES", "defended", "unfit"]

DEFENCES: dict[str, Mapping[str, object]] = {
    "none": {"guard": "off", "aggregator": "mean"},
    "default": {},
    **({"strict": {"guard": "strict"}} if hasattr(Guard, "strict") else {}),
    "trimmed-mean": {"aggregator": "trimmed-mean"},
    "coordinate-median": {"aggregator": "coordinate-median"},
    "centered-clipping": {"aggregator": "centered-clipping"},
}
"""What each defence changes in the plan of the file; ``default`` is the file's own."""


def defended(plan: Plan, defence: str) -> Plan:
    """Return the plan with a defence."""
    return Plan.of(**{**plan.settings(), **DEFENCES[defence]})  # type: ignore[typeddict-item]


def unfit(plan: Plan, defence: str) -> str | None:
    """Return why a defence does not fit a plan, or None if it does."""
    changed = defended(plan, defence)
    if changed.weighting != "uniform" and changed.aggregator is not Mean:
        return f"robust aggregation needs federation.weighting 'uniform', not {plan.weighting!r}"
    same = [f.name for f in dataclasses.fields(plan)]
    if defence != "default" and all(getattr(plan, n) == getattr(changed, n) for n in same):
        return "it is the file's own, see default"
    return None
