"""A wave of clients as it crosses to other processes, and the tallies that come back.

All that crosses is plain values beside tensors.  The processes belong to one run: they were forked
from it, or started with it by ``torchrun``.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

from torch import Tensor

from ..algorithms import Vector, Vectors
from ..protocol.codecs import Codecs
from ..protocol.engine import Engine
from ..protocol.messages import Task
from ..server.collect import beside, collect
from ..server.guard import Limit
from ..server.guard.contract import up_like
from ..server.plan import Plan
from ..server.state import ServerState
from ..server.tally import Tally
from ..server.tally_form import read, written
from ..server.waves import Wave

__all__ = ["Costs", "Order", "Share", "order_of", "read_share", "tensors_of"]

Names = list[tuple[str, int]]
"""The names of vectors, and how many tensors each has."""


@dataclass(frozen=True, kw_only=True)
class Order:
    """What a process is to collect; the tensors of the task and the state go beside it."""

    task: Task
    state: ServerState
    sent: Names
    held: Names
    cohort: Sequence[int]
    clients: Sequence[int] = ()
    """Those of the wave, in the order in which they are taken."""
    limits: Mapping[str, Limit] | None = None

    def share(
        self, plan: Plan, engine: Engine, tensors: Sequence[Tensor], take: Callable[[], int]
    ) -> Share:
        """Collect clients until none is left; ``take()`` counts those that any process took."""
        sent = _vectors(self.sent, tensors)
        task = replace(self.task, vectors=sent, codecs=plan.codec)
        held = _vectors(self.held, tensors[_length(self.sent) :])
        state = replace(self.state, vectors=Vectors({**sent, **held}))
        taken = _Taken(self.clients, take)
        tally = collect(
            replace(plan, target=None),  # the waves see to it
            engine,
            task,
            self.cohort,
            state,
            share=cast(Sequence[int], taken),  # an engine in process goes through it once
            limits=self.limits,
        )
        header, named = written(tally)
        return Share(header, named, taken.seconds)


@dataclass(frozen=True)
class Share:
    """The tally of a process's share, as plain values and tensors, and what each client cost."""

    header: Mapping[str, Any]
    tensors: Mapping[str, Sequence[Tensor]]
    seconds: Mapping[int, float] = field(default_factory=dict)


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
        """Return the clients by expected cost; one that is not known costs what most do."""
        known = [self._seconds[client] for client in clients if client in self._seconds]
        usual = statistics.median(known) if known else 0.0
        return sorted(clients, key=lambda client: -self._seconds.get(client, usual))


def order_of(plan: Plan, task: Task, cohort: Sequence[int], state: ServerState) -> Order:
    """Return the round's order, without clients."""
    held = beside(plan, task, state.vectors)
    return Order(
        task=replace(task, vectors=Vectors(), parcel=None, codecs=Codecs()),
        state=ServerState(
            Vectors(),
            round=state.round,
            updates=state.updates,
            run=state.run,
            contributed={c: state.contributed[c] for c in cohort if c in state.contributed},
            history=state.history,
            variances=state.variances,
        ),
        sent=[(name, len(vector)) for name, vector in task.vectors.items()],
        held=[(name, len(vector)) for name, vector in held.items()],
        cohort=list(cohort),
    )


def tensors_of(plan: Plan, task: Task, state: ServerState) -> list[Tensor]:
    """Return the tensors that go beside the round's order."""
    vectors = (*task.vectors.values(), *beside(plan, task, state.vectors).values())
    return [t for vector in vectors for t in vector]


def read_share(share: Share, plan: Plan, task: Task, wave: Wave) -> Tally:
    """Return the tally of a share; its tensors are not copied."""
    like = up_like(plan.algorithm, task)
    return read(share.header, share.tensors, wave.empty(), like=like, share=wave.clients)


def _length(names: Names) -> int:
    return sum(count for _, count in names)


def _vectors(names: Names, tensors: Iterable[Tensor]) -> Vectors:
    rest = iter(tensors)
    return Vectors((name, Vector(next(rest) for _ in range(count))) for name, count in names)
