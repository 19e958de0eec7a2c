"""Collecting: send a task to a cohort and tally the replies.

This is the part of a round that parallel workers and the leaves of an aggregation tree run on
their share of the cohort.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from ..protocol.engine import Engine
from ..protocol.messages import Task
from .guard import Accounts, Admission, Limit, Open
from .plan import Plan
from .record import Clock
from .state import ServerState
from .tally import Tally

__all__ = ["Collector", "collect", "new_tally"]


class Collector(Protocol):
    """Sends a task to a cohort and returns the tally, as :func:`collect` does."""

    def __call__(
        self,
        plan: Plan,
        engine: Engine,
        task: Task,
        cohort: Sequence[int],
        state: ServerState,
        *,
        clock: Clock | None = None,
    ) -> Tally:
        """Return the tally of the cohort."""
        ...


def new_tally(plan: Plan, task: Task, cohort: Sequence[int], state: ServerState) -> Tally:
    """Return an empty tally of a cohort, with the plan's guard and what it remembers."""
    if plan.guard is None:
        return Tally(plan.aggregator(), cohort, Open(plan.weighting))
    admission = Admission(
        plan.guard,
        plan.algorithm,
        task,
        cohort,
        history=state.history,
        weighting=plan.weighting,
        accounts=Accounts(plan.algorithm, state.vectors, state.contributed),
        variances=state.variances,
        updates=state.updates,
    )
    return Tally(plan.aggregator(), cohort, admission)


def collect(
    plan: Plan,
    engine: Engine,
    task: Task,
    cohort: Sequence[int],
    state: ServerState,
    *,
    share: Sequence[int] | None = None,
    limits: Mapping[str, Limit] | None = None,
    clock: Clock | None = None,
) -> Tally:
    """Send the task to the cohort, or to a ``share`` of it, and return a mergeable tally.

    ``limits`` are the guard's, if the first replies of this round have set them elsewhere.  Call
    ``close`` on the tally after all shares are merged.
    """
    tally = new_tally(plan, task, cohort, state)
    if limits is not None:
        tally.admission.limits = limits
    clock = clock or Clock()
    for reply in clock.waiting(engine.exchange(task, cohort if share is None else share)):
        tally.add(reply)
        if tally.enough(plan.target):
            break
    return tally
