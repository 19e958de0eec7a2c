"""Collecting: send a task to a cohort and tally the replies.

This is the part of a round that parallel workers and the leaves of an aggregation tree run on
their share of the cohort.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol

import torch

from ...algorithms import Vector
from ...protocol.engine import Engine
from ...protocol.messages import Failure, Reply, Task
from ...protocol.residual import base
from ..guard import CENTRE, Accounts, Admission, Limit, NoGuard, judged
from ..plan import Plan
from ..private.admission import Private
from ..record import Clock
from ..state import ServerState
from .by_version import ByVersion
from .tally import Tally

__all__ = ["Collector", "Here", "collect", "new_tally"]


class Collector(Protocol):
    """Sends a task to a cohort and returns the tally, in this process or with others.

    A collector that also returns late replies to earlier tasks has ``waits``, which is True.
    """

    def collect(self, task: Task, cohort: Sequence[int], state: ServerState, clock: Clock) -> Tally:
        """Return the tally of the cohort; the clock counts the time spent waiting."""
        ...


class Here:
    """Collects in this process, through an engine."""

    def __init__(self, plan: Plan, engine: Engine) -> None:
        self._plan, self._engine = plan, engine
        self.waits: bool = getattr(engine, "waits", False)

    def collect(self, task: Task, cohort: Sequence[int], state: ServerState, clock: Clock) -> Tally:
        """Send the task to the cohort and return the tally of the replies."""
        return collect(self._plan, self._engine, task, cohort, state, clock=clock)


def new_tally(plan: Plan, task: Task, cohort: Sequence[int], state: ServerState) -> Tally:
    """Return an empty tally of a cohort, with the plan's guard and its history.

    Where replies may be late, it is also of the clients that are under way with earlier tasks.
    """
    accounts = Accounts(plan.algorithm, state.vectors, state.contributed)

    def admission(sent: Task, cohort: Sequence[int], base: Vector | None) -> Admission | NoGuard:
        if plan.guard is None:
            return NoGuard(plan.weighting, base, unit_delta=plan.algorithm.unit_delta)
        return Admission(
            plan.guard,
            plan.algorithm,
            sent,
            cohort,
            history=state.history,
            weighting=plan.weighting,
            accounts=accounts,
            variances=state.variances,
            updates=state.updates,
            base=base,
            centre=state.vectors.get(CENTRE),
            now=task.vectors,
        )

    if task.clips is not None:
        return Tally(plan.aggregator(), cohort, Private(plan.algorithm, task, cohort))
    if not plan.staleness:
        added = base(plan.algorithm, plan.codec, state.vectors)
        return Tally(plan.aggregator(), cohort, admission(task, cohort, added))
    flights = {client: flight.version for client, flight in sorted(state.flights.items())}

    def of(version: int) -> Admission | NoGuard:
        clients = [client for client, flown in flights.items() if flown == version]
        sent = state.task_of(task, version, clients)
        return admission(sent, clients, state.versions[version].base)

    late = ByVersion(of, flights, round=task.round, aging=plan.aging)
    summed = [total.up for total in plan.algorithm.sums] if late.ages_replies else []
    return Tally(plan.aggregator(), cohort, late, summed=summed)


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

    ``limits`` are the guard's limits if another collector's replies have set them in this round.
    Who splits the cohort closes the round: a share asks all of its clients.  Call ``close`` on the
    tally after all shares are merged.
    """
    tally = new_tally(plan, task, cohort, state)
    if limits is not None:
        tally.admission.limits = limits
    clock, here = clock or Clock(), partial(_placed, device=task.vectors.x.device)
    for reply in clock.waiting(engine.exchange(task, cohort if share is None else share)):
        tally.add(reply if isinstance(reply, Failure) else judged(here, reply, reply))
        if share is None and tally.enough(plan.close_after):
            break
    return tally


def _placed(reply: Reply, device: torch.device) -> Reply:
    """Return a reply with its vectors where the server has its own."""
    if all(vector.on(device) is vector for vector in reply.vectors.values()):
        return reply
    return replace(reply, vectors=reply.vectors.on(device), received=reply.nbytes)
