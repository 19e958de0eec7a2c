"""A run's schedule alone, without any training: who answers when, and when rounds end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ..algorithms import Vectors
from ..server.loop import next_cohort
from ..server.plan import Plan
from ..server.state import Flight, ServerState
from .timed import Timetable

__all__ = ["Expected", "schedule"]


class Expected(NamedTuple):
    """A round as it will be, if no reply is rejected."""

    time: float
    """Simulated seconds from the start of the run to the end of the round."""
    cohort: Sequence[int]
    accepted: Sequence[int]
    ages: Sequence[int]
    """By how many rounds each accepted reply is late."""
    failures: Counter[str]
    wasted: int
    """Number of clients whose replies come too late."""


def schedule(plan: Plan, timetable: Timetable, *, clients: int) -> Iterator[Expected]:
    """Yield the rounds of a plan."""
    state = ServerState(Vectors())
    while state.round < plan.rounds:
        cohort, start = next_cohort(plan, state, clients), state.time or 0.0
        state.flights |= dict.fromkeys(cohort, Flight(state.round, start))
        accepted, ages, failures = list[int](), list[int](), Counter[str]()
        for arrival in timetable.arrivals(state.round, cohort, start, state.flights):
            state.time = arrival.time
            flight = state.flights.pop(arrival.client)
            if arrival.failure is None:
                accepted.append(arrival.client)
                ages.append(state.round - flight.version)
            else:
                failures[arrival.failure.reason] += 1
            if len(accepted) == plan.close_after:
                break
        state.round += 1
        wasted = state.forget(plan.staleness)
        yield Expected(state.time or 0.0, cohort, accepted, ages, failures, wasted)
