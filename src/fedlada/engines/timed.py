"""Simulated time: replies come in the order in which the clients' devices would send them.

When a task ends depends on its bytes and steps, and on nothing that training finds.  So the order
is known first, and only the clients whose replies are used are trained: a round that closes early
costs no more than a small one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from torch import nn

from ..errors import FedladaError, require
from ..protocol.engine import Engine
from ..protocol.messages import Failure, Reply, Task
from ..server.collect.waves import Arrival
from ..server.plan import Plan
from ..server.sizes import message_bytes
from ..server.state import Flight, ServerState
from ..training.examples import examples_in
from .around import Around
from .devices import Devices, Work
from .sites import ClientDatasets

__all__ = ["Timed", "Timetable", "work_of"]

EMPTY: Mapping[int, Flight] = MappingProxyType({})


@dataclass(frozen=True)
class Timetable:
    """Says when each client of a cohort will answer."""

    devices: Devices
    work: Work
    deadline: float | None = None

    def arrivals(
        self, round: int, cohort: Sequence[int], start: float, flights: Mapping[int, Flight] = EMPTY
    ) -> list[Arrival]:
        """Return the cohort of a round in the order of arrival, if it is asked at ``start``.

        The clients of ``flights``, which were asked earlier, arrive in between.
        """
        arrivals = list[Arrival]()
        asked = {**flights, **dict.fromkeys(cohort, Flight(round, start))}
        for client, flight in asked.items():
            end, reason, reached = self.devices.outcome(
                client,
                flight.version,
                start=flight.start,
                work=self.work,
                deadline=self.deadline,
            )
            failure = Failure(client=client, reason=reason, reached=reached) if reason else None
            arrivals.append(Arrival(client, time=end, failure=failure))
        if all(arrival.failure and not arrival.failure.reached for arrival in arrivals):
            # The server asks in vain, and again: a round that takes no time would never end.
            vain = start + self.devices.latency
            arrivals = [arrival._replace(time=vain) for arrival in arrivals]
        return sorted(arrivals, key=lambda arrival: (arrival.time, arrival.client))


class Timed(Around):
    """Has the clients of another engine, and moves the time of ``state`` with each reply.

    Clients of earlier rounds that are still under way answer when their own tasks end.
    """

    waits = True

    def __init__(self, engine: Engine, timetable: Timetable, state: ServerState) -> None:
        super().__init__(engine)
        self._timetable, self._state = timetable, state

    def exchange(self, task: Task, cohort: Sequence[int]) -> Iterator[Reply | Failure]:
        """Yield the replies of the engine and the failures of devices in the order of time."""
        state = self._state
        state.time = state.time or 0.0
        arrivals = self._timetable.arrivals(task.round, cohort, state.time, state.flights)
        if not state.flights:
            yield from self._replies(task, arrivals)
            return
        for arrival in arrivals:
            client = arrival.client
            sent = state.task_of(task, state.flights.pop(client).version, [client])
            yield from self._replies(sent, [arrival])

    def _replies(self, task: Task, arrivals: Sequence[Arrival]) -> Iterator[Reply | Failure]:
        """Yield the answers to one task, each when it arrives."""
        state = self._state
        times = {arrival.client: arrival.time for arrival in arrivals}
        lost = deque(arrival for arrival in arrivals if arrival.failure is not None)
        able = [arrival.client for arrival in arrivals if arrival.failure is None]
        for reply in self._engine.exchange(task, able):
            time = max(state.time or 0.0, times.get(reply.client, 0.0))
            while lost and lost[0].time <= time:
                yield _passed(lost.popleft(), state)
            state.time = time
            yield reply
        while lost:
            yield _passed(lost.popleft(), state)


def _passed(arrival: Arrival, state: ServerState) -> Failure:
    assert arrival.failure is not None
    state.time = max(state.time or 0.0, arrival.time)
    return arrival.failure


def work_of(
    plan: Plan, model: nn.Module, devices: Devices, train: object, data: ClientDatasets[Any]
) -> Work:
    """Return what the tasks of a run are made of; raise an error if nobody knows the steps."""
    down, up = message_bytes(plan, model)
    if devices.steps is not None:
        steps = devices.steps
        return Work(down, up, lambda client: steps)
    with_examples = getattr(train, "steps_with", None)
    require(
        with_examples is not None,
        f"the training loop {train!r:.100} does not say how many steps a client takes, which its"
        " time depends on; give devices the number, such as steps=50",
    )
    assert with_examples is not None
    if getattr(train, "steps", None) is not None:
        steps = with_examples(1)
        return Work(down, up, lambda client: steps)
    sizes = dict[int, int]()

    def by_examples(client: int) -> int:
        if client not in sizes:
            sizes[client] = with_examples(_examples(data, client))
        return sizes[client]

    return Work(down, up, by_examples)


def _examples(data: ClientDatasets[Any], client: int) -> int:
    try:
        return examples_in(data[client])
    except TypeError as error:
        raise FedladaError(
            f"the data of client {client} have no length, so the number of its steps is unknown;"
            " give devices the number, such as steps=50"
        ) from error
