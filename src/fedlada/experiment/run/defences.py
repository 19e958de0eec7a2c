"""The defences that ``fedlada attack`` compares: changes to the plan of a federation."""

from __future__ import annotations

import dataclasses

from ...server.mean import Mean
from ...server.plan import Plan, PlanSettings

__all__ = ["DEFENCES", "defended", "unfit"]

DEFENCES: dict[str, PlanSettings] = {
    "none": {"guard": "off", "aggregator": "mean"},
    "default": {},
    "strict": {"guard": "strict"},
    "trimmed-mean": {"aggregator": "trimmed-mean"},
    "coordinate-median": {"aggregator": "coordinate-median"},
    "centered-clipping": {"aggregator": "centered-clipping"},
}
"""What each defence changes in the plan of the file; ``default`` is the file's own."""


def defended(plan: Plan, defence: str) -> Plan:
    """Return the plan with a defence."""
    settings = plan.settings()
    settings.update(DEFENCES[defence])
    return Plan.of(**settings)


def unfit(plan: Plan, defence: str) -> str | None:
    """Return why a defence does not fit a plan, or None if it does."""
    robust = DEFENCES[defence].get("aggregator", plan.aggregator) not in ("mean", Mean)
    if plan.weighting != "uniform" and robust:
        return f"robust aggregation needs federation.weighting 'uniform', not {plan.weighting!r}"
    changed = defended(plan, defence)
    same = [f.name for f in dataclasses.fields(plan)]
    if defence != "default" and all(getattr(plan, n) == getattr(changed, n) for n in same):
        return "it is the file's own, see default"
    return None
