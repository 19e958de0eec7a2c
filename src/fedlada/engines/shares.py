"""The share of a wave that one process of a run collects, and the tally that comes back.

All that crosses is plain values and tensors.  The processes belong to one run: they were forked
from it, or started with it by ``torchrun``.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from ..protocol.engine import Engine
from ..protocol.messages import Failure, Reply, Task
from ..server.collect.form import read, written
from ..server.collect.order import Order
from ..server.collect.tally import Tally
from ..server.collect.waves import Wave
from ..server.guard.contract import up_like
from ..server.plan import Plan
from ..server.state import ServerState
from .around import Around

__all__ = ["Costs", "Share", "collect_share", "read_share"]


@dataclass(frozen=True)
class Share:
    """The tally of a process's share, as plain values and tensors, and what each client cost."""

    header: Mapping[str, Any]
    tensors: Mapping[str, Sequence[Tensor]]
    seconds: Mapping[int, float] = field(default_factory=dict)


def collect_share(order: Order, plan: Plan, engine: Engine, take: Callable[[], int]) -> Share:
    """Collect clients of an order until none is left.

    ``take()`` returns the next position in a counter that all processes share.
    """
    taken = _Taken(order.clients, take)
    running = OnTime(engine, order.state) if plan.staleness else engine
    header, named = written(order.collect(plan, running, taken))
    return Share(header, named, taken.seconds)


def read_share(share: Share, plan: Plan, task: Task, wave: Wave) -> Tally:
    """Return the tally of a share; its tensors are not copied."""
    like = up_like(plan.algorithm, task)
    return read(share.header, share.tensors, wave.empty(), like=like, share=wave.clients)


class OnTime(Around):
    """Has each client answer the task that it was sent, in this round or an earlier one."""

    def __init__(self, engine: Engine, state: ServerState) -> None:
        super().__init__(engine)
        self._state = state

    def exchange(self, task: Task, cohort: Sequence[int]) -> Iterator[Reply | Failure]:
        """Yield the replies of the clients, whose flights are in the state."""
        for client in cohort:
            sent = self._state.task_of(task, self._state.flights[client].version, [client])
            yield from self._engine.exchange(sent, [client])


class _Taken:
    """The clients that this process takes, one by one; the time of each is measured."""

    def __init__(self, clients: Sequence[int], take: Callable[[], int]) -> None:
        self._clients, self._take = clients, take
        self.seconds: dict[int, float] = {}

    def __iter__(self) -> Iterator[int]:
        while (i := self._take()) < len(self._clients):
            began, client = time.perf_counter(), self._clients[i]
            yield client
            self.seconds[client] = time.perf_counter() - began


class Costs:
    """What each client cost when it last took part: the longest are taken first."""

    def __init__(self) -> None:
        self._seconds: dict[int, float] = {}

    def learn(self, seconds: Mapping[int, float]) -> None:
        """Note the seconds of clients."""
        self._seconds.update(seconds)

    def order(self, clients: Sequence[int]) -> list[int]:
        """Return the clients by expected cost; one without a measurement costs the median."""
        known = [self._seconds[client] for client in clients if client in self._seconds]
        usual = statistics.median(known) if known else 0.0
        return sorted(clients, key=lambda client: -self._seconds.get(client, usual))
