"""Collecting: send a task to a cohort and tally the replies.

This is the part of a round that parallel workers and the leaves of an aggregation tree run on
their share of the cohort.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from ..algorithms import Vectors
from ..protocol.engine import Engine
from ..protocol.messages import Task
from ..protocol.news import coasted
from .guard import Accounts, Admission, Limit, Open
from .plan import Plan
from .record import Clock
from .state import ServerState
from .tally import Tally

__all__ = ["Collector", "beside", "collect", "new_tally"]


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


def beside(plan: Plan, task: Task, server: Vectors) -> Vectors:
    """Return the server's vectors that collecting needs, unless the task has their bits.

    The guard keeps accounts along what the server sums up, and where deltas are coded, clients
    leave out the coasting along what the server holds.
    """
    names = [total.into for total in plan.algorithm.sums]
    if not task.codecs.of("up", "delta").exact:
        names += [name for name in plan.algorithm.down if name != "x"]
    coded = (n for n in names if n not in task.vectors or not task.codecs.of("down", n).exact)
    return server.only(name for name in coded if name in server)


def new_tally(plan: Plan, task: Task, cohort: Sequence[int], state: ServerState) -> Tally:
    """Return an empty tally of a cohort, with the plan's guard and what it remembers."""
    lacking = coasted(plan.algorithm, plan.codec, state.vectors)
    if plan.guard is None:
        unit_delta = plan.algorithm.unit_delta
        return Tally(
            plan.aggregator(), cohort, Open(plan.weighting, lacking, unit_delta=unit_delta)
        )
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
