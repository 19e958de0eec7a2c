"""Collecting: send a task to a cohort and tally the replies.

This is the part of a round that parallel workers and the leaves of an aggregation tree run on
their share of the cohort.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..protocol.engine import Engine
from ..protocol.messages import Task
from ..protocol.news import coasted
from .guard import Accounts, Admission, Open
from .plan import Plan
from .record import Clock
from .state import ServerState
from .tally import Tally

__all__ = ["collect", "new_tally"]


def new_tally(plan: Plan, task: Task, cohort: Sequence[int], state: ServerState) -> Tally:
    """Return an empty tally of a cohort, with the plan's guard and what it remembers."""
    lacking = coasted(plan.algorithm, plan.codec, state.vectors)
    if plan.guard is None:
        return Tally(plan.aggregator(), cohort, Open(plan.weighting, lacking))
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
        lacking=lacking,
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
    clock: Clock | None = None,
) -> Tally:
    """Send the task to the cohort, or to a ``share`` of it, and return a mergeable tally.

    Call ``close`` on the tally after all shares are merged.
    """
    tally = new_tally(plan, task, cohort, state)
    clock = clock or Clock()
    for reply in clock.waiting(engine.exchange(task, cohort if share is None else share)):
        tally.add(reply)
        if tally.enough(plan.target):
            break
    return tally
