"""The state that the server keeps from round to round."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from ..algorithms import Algorithm, Vector, Vectors
from ..protocol.messages import Task
from .guard.limits import History
from .private.account import Account

__all__ = ["Flight", "ServerState", "Version"]


class Flight(NamedTuple):
    """A client that was sent a task and has not answered."""

    version: int
    """The round of its task."""
    start: float = 0.0
    """When it was sent the task, in simulated seconds after the start of the run."""


@dataclass(frozen=True, kw_only=True)
class Version:
    """What the server keeps of the task of a round while a reply to it may still count."""

    vectors: Vectors
    """The vectors of the task, as the clients see them; x may be left out where nobody trains from
    it any more: a reply is not compared with it."""
    base: Vector | None
    """What the server adds to a coded delta, from its own vectors of that round
    (:mod:`fedlada.protocol.residual`)."""
    lr: float
    nonce: str


@dataclass
class ServerState:
    """The state that the server keeps from round to round."""

    vectors: Vectors
    """The server's vectors; ``personal``, if there, has the first values of the personal parts."""
    round: int = 0
    """Number of rounds done."""
    updates: int = 0
    """Number of rounds that changed the model."""
    run: str = field(default_factory=lambda: secrets.token_hex(8))
    """The run's name, the same before and after it is resumed."""
    last_accepted: dict[int, int] = field(default_factory=dict)
    """The round of the last accepted reply of each client, if clients keep vectors."""
    contributed: dict[int, float] = field(default_factory=dict)
    """Each client's account with the guard, if the server sums up a vector of its replies."""
    changed: set[int] = field(default_factory=set)
    """The clients whose entries in these two changed since the last checkpoint."""
    metric_names: list[str] = field(default_factory=list)
    """The names of the clients' metrics that are on record."""
    history: History = field(default_factory=dict)
    """The guard's statistics of recent rounds."""
    variances: tuple[int, ...] = ()
    """The positions of the averaged buffers that are variances, and so are never negative."""
    time: float | None = None
    """Simulated seconds since the start of the run; None in real time."""
    resumable_from: int | None = None
    """The earliest round from which the run can be resumed, or of a task that a client then still
    has; None if it cannot be resumed."""
    flights: dict[int, Flight] = field(default_factory=dict)
    """The clients that are under way, where replies may be late; an engine removes a client when
    it hands over its answer."""
    versions: dict[int, Version] = field(default_factory=dict)
    """What is kept of the task of each round that a client under way has."""
    clips: dict[str, float] = field(default_factory=dict)
    """In a private run: the greatest length of the news of each ``up`` vector in the next round."""
    enrolled: int = 0
    """In a private run: the number of clients at its start."""
    account: Account | None = None
    """In a private run: what was released so far, and the secret; it has its own files."""

    @classmethod
    def new(cls, algorithm: Algorithm, x: Vector, buffers: Vector | None = None) -> ServerState:
        """Return the state before the first round."""
        state = cls(algorithm.start(x))
        if buffers is not None:
            state.vectors.buffers = buffers
        return state

    def depart(self, task: Task, cohort: Sequence[int], *, base: Vector | None) -> None:
        """Note that the clients of a cohort are under way with the task of this round."""
        self.flights |= dict.fromkeys(cohort, Flight(task.round, self.time or 0.0))
        self.versions[task.round] = Version(
            vectors=task.vectors, base=base, lr=task.lr, nonce=task.nonce
        )

    def task_of(self, task: Task, version: int, clients: Sequence[int]) -> Task:
        """Return the task that these clients were sent, given that of the present round."""
        if version == task.round:
            return task
        kept, last = self.versions[version], self.last_accepted
        return replace(
            task,
            round=version,
            lr=kept.lr,
            vectors=Vectors({"x": task.vectors.x, **kept.vectors}),
            parcel=None,
            nonce=kept.nonce,
            last_accepted={client: last[client] for client in clients if client in last},
        )

    def forget(self, staleness: int) -> int:
        """End the flights whose replies would come too late from now on; return their number.

        A reply may be ``staleness`` rounds old.
        """
        late = [c for c, f in self.flights.items() if self.round - f.version > staleness]
        for client in late:
            del self.flights[client]
        used = {flight.version for flight in self.flights.values()}
        self.versions = {n: kept for n, kept in self.versions.items() if n in used}
        return len(late)
