"""Waves: a cohort that several collectors share ends in the tally that one would return.

One collector stops at the plan's ``target``, and the first replies in the order of the cohort set
the guard's limits in the first round.  So a cohort is not shared at once: the first clients that a
round surely asks are one wave, and as many as are then missing the next.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from ..protocol.messages import Task
from .collect import new_tally
from .guard import Admission, Limit, Open
from .plan import Plan
from .state import ServerState
from .tally import Tally

__all__ = ["Wave", "in_waves"]


@dataclass(frozen=True, kw_only=True)
class Wave:
    """Clients to share among collectors, all at once."""

    clients: Sequence[int]
    limits: Mapping[str, Limit] | None
    """The guard's limits, unless this wave is to set them."""
    last: bool
    """Whether no other wave can follow in this round."""
    empty: Callable[[], Tally]
    """Makes an empty tally, to read a share's tally into."""


def in_waves(
    plan: Plan,
    task: Task,
    cohort: Sequence[int],
    state: ServerState,
    shares: Callable[[Wave], Iterable[Tally]],
) -> Tally:
    """Return the tally of the cohort; ``shares`` returns the tallies of a wave's collectors.

    The tensors of a last wave's tallies must stay as they are until the round is done.
    """
    tally, left = new_tally(plan, task, cohort, state), list(cohort)
    while left and not tally.enough(plan.target):
        size = min(_surely_asked(plan, tally), len(left))
        clients, left = left[:size], left[size:]
        before = copy.copy(tally.admission)

        def empty(before: Admission | Open = before) -> Tally:
            return Tally(plan.aggregator(), cohort, copy.copy(before))

        wave = Wave(clients=clients, limits=before.limits, last=not left, empty=empty)
        for share in shares(wave):
            if wave.last and tally.untouched:
                tally = share  # as good as the empty one with this merged into it, and no copy
            else:
                tally.merge(share)
    return tally


def _surely_asked(plan: Plan, tally: Tally) -> int:
    """Return how many of the next clients one collector would ask, whatever they answer."""
    most = len(tally.cohort)
    if plan.target is not None:
        most = plan.target - len(tally.accepted) - len(tally.held)
    return min(most, tally.uncalibrated or most)
