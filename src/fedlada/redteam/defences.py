"""The names of attacks and defences that an experiment can choose.

A defence is a set of plan settings.
"""

from __future__ import annotations

from ..server.aggregate.robust import AGGREGATORS
from ..server.plan import PlanSettings
from .attacks import ATTACKS

__all__ = ["ABSENT", "ATTACK_NAMES", "DEFENCES", "HONEST"]

HONEST, ABSENT = "none", "absent"
"""The baselines: nobody attacks, or the attackers send nothing."""
ATTACK_NAMES = (HONEST, ABSENT, *ATTACKS)

DEFENCES: dict[str, PlanSettings] = {
    "default": {},
    "none": {"guard": "off", "aggregator": "mean"},
    "strict": {"guard": "strict"},
    **{name: {"aggregator": name} for name in AGGREGATORS if name != "mean"},
}
"""The keys of ``[federation]`` that each defence replaces; ``default`` replaces none."""
