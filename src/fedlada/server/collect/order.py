"""Orders: a share of a round's cohort to collect elsewhere, with all that its collector needs.

Workers and ranks of one run get the order as an object and its tensors separately.  A leaf of an
aggregation tree gets the same values as JSON.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from torch import Tensor

from ...algorithms import Vector, Vectors
from ...protocol.codecs import Codecs
from ...protocol.engine import Engine
from ...protocol.messages import Task
from ..guard import CENTRE, Limit
from ..plan import Plan
from ..state import ServerState, Version
from .collect import collect
from .tally import Tally

__all__ = ["Order", "Sealed"]

BASE = "coded delta"
"""The name of a version's base among its vectors; no vector of an algorithm can have it."""


@dataclass(frozen=True, kw_only=True)
class Order:
    """A share of a cohort to collect, and what the collector's guard needs."""

    task: Task
    cohort: Sequence[int]
    """The round's whole cohort, in order."""
    state: ServerState
    """The part of the server's state that a collector needs, with vectors that the task lacks."""
    clients: Sequence[int] = ()
    """The share, in the order in which its clients are asked."""
    limits: Mapping[str, Limit] | None = None
    """The guard's limits, if the first replies of this round have set them."""

    @classmethod
    def of(cls, plan: Plan, task: Task, cohort: Sequence[int], state: ServerState) -> Order:
        """Return the order of a round, still without clients."""
        who, known = {*cohort, *state.flights}, state.contributed
        needed = ServerState(
            _beside(plan, task, state.vectors),
            round=state.round,
            updates=state.updates,
            run=state.run,
            contributed={client: known[client] for client in who if client in known},
            history=state.history,
            variances=state.variances,
            last_accepted={c: state.last_accepted[c] for c in who if c in state.last_accepted},
            flights=dict(state.flights),
            versions=dict(state.versions),
        )
        return cls(task=task, cohort=list(cohort), state=needed)

    def share(self, clients: Sequence[int], limits: Mapping[str, Limit] | None) -> Order:
        """Return the order for these clients."""
        flights = self.state.flights
        used = {self.task.round, *(flights[client].version for client in clients if flights)}
        versions = {n: kept for n, kept in self.state.versions.items() if n in used}
        state = replace(self.state, versions=versions)
        return replace(self, clients=clients, limits=limits, state=state)

    def collect(self, plan: Plan, engine: Engine, clients: Iterable[int] | None = None) -> Tally:
        """Collect the share, or ``clients`` of it, which an engine in process may take one by one.

        The collector of the whole cohort closes the round, so ``plan.close_after`` has no effect.
        """
        return collect(
            plan,
            engine,
            self.task,
            self.cohort,
            replace(self.state, vectors=Vectors({**self.task.vectors, **self.state.vectors})),
            share=self.clients if clients is None else cast(Sequence[int], clients),
            limits=self.limits,
        )

    def plain(self) -> dict[str, Any]:
        """Return what the guard needs, as values for JSON."""
        known = self.state.contributed
        return {
            "updates": self.state.updates,
            "history": self.state.history,
            "contributed": [[c, known[c]] for c in self.clients if c in known],
            "variances": [*self.state.variances],
            "limits": None if self.limits is None else {n: [*v] for n, v in self.limits.items()},
        }

    @classmethod
    def read(
        cls,
        table: Mapping[str, Any],
        task: Task,
        vectors: Vectors,
        *,
        cohort: Sequence[int],
        clients: Sequence[int],
    ) -> Order:
        """Return the order with these plain values and with ``vectors``, which the task lacks."""
        state = ServerState(
            vectors,
            round=task.round,
            updates=table["updates"],
            run=task.run,
            contributed=dict(table["contributed"]),
            history={n: [(m, s, k) for m, s, k in seen] for n, seen in table["history"].items()},
            variances=tuple(table["variances"]),
        )
        limits = table["limits"] and {name: Limit(*ends) for name, ends in table["limits"].items()}
        return cls(task=task, cohort=cohort, state=state, clients=clients, limits=limits)

    def sealed(self) -> tuple[Sealed, list[Tensor]]:
        """Return the order without its tensors, and the tensors, which are sent separately."""
        sent, held, late = self.task.vectors, self.state.vectors, self.state.versions
        packed = {n: _packed(kept, self.task) for n, kept in late.items()}
        bare = replace(
            self,
            task=replace(self.task, vectors=Vectors(), parcel=None, codecs=Codecs()),
            state=replace(
                self.state,
                vectors=Vectors(),
                versions={n: replace(v, vectors=Vectors(), base=None) for n, v in late.items()},
            ),
        )
        every = [sent, held, *packed.values()]
        tensors = [t for vectors in every for vector in vectors.values() for t in vector]
        lengths = {number: _lengths(vectors) for number, vectors in packed.items()}
        return Sealed(bare, _lengths(sent), _lengths(held), lengths), tensors


Lengths = list[tuple[str, int]]
"""The names of vectors, and the number of tensors of each."""


@dataclass(frozen=True)
class Sealed:
    """An order without its tensors."""

    order: Order
    sent: Lengths
    held: Lengths
    late: Mapping[int, Lengths]
    """Of what is kept of the tasks of earlier rounds."""

    def opened(self, tensors: Iterable[Tensor], codecs: Codecs) -> Order:
        """Return the order with its tensors."""
        rest, order = iter(tensors), self.order
        sent, held = _vectors(self.sent, rest), _vectors(self.held, rest)
        versions = {}
        for number, lengths in self.late.items():
            vectors = _vectors(lengths, rest)
            base = vectors.pop(BASE, None)
            versions[number] = replace(order.state.versions[number], vectors=vectors, base=base)
        return replace(
            order,
            task=replace(order.task, vectors=sent, codecs=codecs),
            state=replace(order.state, vectors=held, versions=versions),
        )


def _beside(plan: Plan, task: Task, server: Vectors) -> Vectors:
    """Return the server's vectors that a collector needs and that the task has not exactly.

    The guard keeps accounts along what the server sums up, and may clip deltas around the last
    mean.  Where deltas are coded, clients subtract the delta of a client without gradients, which
    the server adds again from its own vectors.
    """
    names = [CENTRE, *(total.into for total in plan.algorithm.sums)]
    if task.clips is None and not task.codecs.of("up", "delta").exact:
        names += [name for name in plan.algorithm.down if name != "x"]
    coded = (n for n in names if n not in task.vectors or not task.codecs.of("down", n).exact)
    return server.only(name for name in coded if name in server)


def _packed(kept: Version, task: Task) -> Vectors:
    """Return what is kept of a task; the vectors of the present one are sent anyway."""
    base = Vectors() if kept.base is None else Vectors({BASE: kept.base})
    return base if kept.nonce == task.nonce else Vectors({**kept.vectors, **base})


def _lengths(vectors: Vectors) -> Lengths:
    return [(name, len(vector)) for name, vector in vectors.items()]


def _vectors(lengths: Lengths, tensors: Iterable[Tensor]) -> Vectors:
    rest = iter(tensors)
    return Vectors((name, Vector(next(rest) for _ in range(count))) for name, count in lengths)
