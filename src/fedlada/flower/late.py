"""The Flower engine for late replies: tasks stay pending while rounds come and go.

A reply counts in the round in which it arrives.  A task ends with the first answer of its client,
at its deadline, or when the server loop has forgotten it because its reply would come too late.  A
ServerApp that restarts is a new run of Flower, which cannot pull replies to the tasks of the run
before: :func:`grounded` ends them.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from flwr.app import MessageType

from ..algorithms import Vectors
from ..engines.around import Around
from ..protocol.messages import Failure, Reply, Task
from ..server.state import Flight, ServerState
from .grid import GridEngine
from .pull import Pull

__all__ = ["Late", "grounded"]

log = logging.getLogger("fedlada")


class _Pending(NamedTuple):
    client: int
    flight: Flight
    end: float


class Late(Around):
    """Has the nodes of a Flower engine, and yields replies to the tasks of all rounds."""

    waits = True

    def __init__(self, engine: GridEngine, state: ServerState) -> None:
        super().__init__(engine)
        self._grid, self._state = engine, state
        self._pull = Pull(engine.grid)
        self._pending: dict[str, _Pending] = {}
        """The tasks that have no answer yet, by the id of their message."""

    def exchange(self, task: Task, cohort: Sequence[int]) -> Iterator[Reply | Failure]:
        """Push the task to the cohort and yield the answers of all clients under way."""
        self._forget()
        for failure in self._push(task, cohort):
            yield self._landed(failure, task)
        read = self._grid.reply_in(task)
        while self._pending:
            for message_id, message in self._pull.until(min(p.end for p in self._pending.values())):
                client = self._pending.pop(message_id).client
                answer = self._grid.answer(message, client, read)
                del message
                yield self._landed(answer, task)
                del answer
            for message_id in self._overdue():
                client = self._pending.pop(message_id).client
                self._pull.drop(message_id)
                yield self._landed(Failure(client=client, reason="deadline"), task)

    def close(self) -> None:
        """Pull no more replies."""
        self._pull.close()

    def _forget(self) -> None:
        """Pull no replies to tasks that the server loop has forgotten."""
        flights = self._state.flights
        for message_id, pending in list(self._pending.items()):
            if flights.get(pending.client) != pending.flight:
                del self._pending[message_id]
                self._pull.drop(message_id)

    def _push(self, task: Task, cohort: Sequence[int]) -> Iterator[Failure]:
        """Push the task, and yield the clients that it cannot be sent to."""
        end = self._grid.end() or math.inf
        messages, missing = self._grid.messages(task, cohort, MessageType.TRAIN)
        kept = self._state.versions[task.round]
        rest = Vectors((name, v) for name, v in kept.vectors.items() if name != "x")
        self._state.versions[task.round] = replace(kept, vectors=rest)
        yield from missing
        clients = list(messages)
        ids = list(self._grid.grid.push_messages(list(messages.values())))
        messages.clear()
        for message_id, client in zip(ids, clients, strict=True):
            if message_id:
                flight = self._state.flights[client]
                self._pending[message_id] = _Pending(client, flight, end)
        self._pull.add([message_id for message_id in ids if message_id])
        for message_id, client in zip(ids, clients, strict=True):
            if not message_id:
                yield Failure(client=client, reason="not sent", reached=False)

    def _overdue(self) -> list[str]:
        now = time.monotonic()
        return [message_id for message_id, p in self._pending.items() if now >= p.end]

    def _landed(self, answer: Reply | Failure, task: Task) -> Reply | Failure:
        """End the flight of a client, whose answer is noted in this round."""
        self._state.flights.pop(answer.client, None)
        self._grid.attendance.note(task.round, answer.client, answer)
        return answer


def grounded(state: ServerState) -> None:
    """End the tasks of a run that was killed: nobody can pull the replies to them any more."""
    if state.flights:
        log.warning(
            "the replies of %d clients under way are lost with the run that was stopped;"
            " they are asked again",
            len(state.flights),
        )
    state.flights.clear()
    state.versions.clear()
