"""The in-process engine: clients are trained one after the other in this process."""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Generic, Literal, cast

from torch import nn

from ..algorithms import Algorithm, Vector
from ..client.errors import named_errors
from ..client.evaluation import (
    EvaluateLocally,
    EvaluationSession,
    evaluation_session,
    fine_tuned,
)
from ..client.round import D, Train, train_client
from ..client.store import MemoryStore, Store
from ..errors import require
from ..protocol.federated import (
    BufferPolicy,
    clients_keep,
    federated_buffers,
    personal_tensors,
)
from ..protocol.messages import Answer, Assessment, Failure, Reply, Task, as_numbers, reply_parcel
from ..server.state import ServerState
from ..training.examples import examples_in
from ..training.local import LocalTraining
from .sites import ClientDatasets, check_clients, client_number, names_of
from .stacked import Choice, Stacked, Unstackable, unstackable

if TYPE_CHECKING:
    from ..privacy.masking import Masker

__all__ = ["InProcess"]


class InProcess(Generic[D]):
    """Runs every client of a cohort on one working copy of the model."""

    def __init__(
        self,
        algorithm: Algorithm,
        model: nn.Module,
        data: ClientDatasets[D],
        train: Train[D],
        *,
        store: Store | None = None,
        buffers: BufferPolicy = "refuse",
        personal: Sequence[str] = (),
        at_once: int | Literal["auto"] = 1,
    ) -> None:
        """Train ``at_once`` clients together, as one model, or ``auto``: if that is faster."""
        check_clients(data)
        self.clients, self.keeps = len(data), clients_keep(algorithm, buffers, personal)
        self.names = names_of(data)
        """The names of the clients; empty if they have none."""
        self._algorithm, self._model, self._data, self._train = algorithm, model, data, train
        self._store = store if store is not None else MemoryStore()
        self._maskers: dict[int, Masker] = {}
        self._policy: BufferPolicy = buffers
        self._personal = tuple(personal)
        self._buffers = federated_buffers(model, buffers, personal)
        self._initial_buffers = self._buffers.clone()
        self._own = Vector(t.detach() for t in personal_tensors(model, personal).values())
        self.newcomer = self._own.clone()
        """The personal tensors with which a client begins its first round."""
        self.choice = Choice(model) if at_once == "auto" else None
        """What ``at_once="auto"`` has chosen."""
        self._at_once, self._stacked = at_once, None if at_once == 1 else self._together(at_once)

    def _together(self, at_once: int | Literal["auto"]) -> Stacked[D] | None:
        """Return what trains clients together; None if ``auto`` is to do without."""
        reason = unstackable(
            self._algorithm, self._model, self._train, self._policy, self._personal
        )
        if self.choice is not None and reason is not None:
            self.choice.made = 1
            return None
        require(
            reason is None,
            f"at_once is {at_once}, and {reason}; leave at_once out, or give at_once='auto'",
        )
        train = cast(LocalTraining, self._train)
        parts = self._algorithm, self._model, train, self._store
        return Stacked(*parts, keeps=self.keeps, alone=self._alone)

    def exchange(self, task: Task, cohort: Sequence[int]) -> Iterator[Reply]:
        """Train the clients of the cohort and yield the replies as the server receives them."""
        rest, choice = iter(cohort), self.choice
        size = cast(int, self._at_once) if choice is None else choice.size
        trained, seconds = 0, 0.0
        try:
            while clients := list(islice(rest, size)):
                began = time.perf_counter()
                replies = self._replies(task, clients)
                trained, seconds = trained + len(clients), seconds + time.perf_counter() - began
                for reply in self._masked(task, replies):
                    parcel = reply_parcel(reply, task)
                    yield replace(reply, vectors=parcel.vectors, received=parcel.nbytes)
        finally:  # the server may have enough replies
            if choice is not None and trained:
                choice.learn(size, trained, seconds)

    def ask(
        self, task: Task, step: str, messages: Mapping[int, bytes]
    ) -> Iterator[Answer | Failure]:
        """Ask each of these clients about the masks of a round, and yield the answers."""
        from ..privacy.masking import Masker, context_of

        if step == "keys":
            self._maskers = {client: Masker(context_of(task)) for client in messages}
        for client, message in messages.items():
            yield Answer(client=client, message=self._maskers[client].answer(step, message))

    def _masked(self, task: Task, replies: Sequence[Reply]) -> Sequence[Reply]:
        """Put replies under the masks of their clients, if the task asks for that."""
        if task.sealed is None:
            return replies
        from ..privacy.masked import masked_reply

        return [masked_reply(reply, task, self._maskers[reply.client]) for reply in replies]

    def _replies(self, task: Task, clients: Sequence[int]) -> Sequence[Reply]:
        """Train these clients, together if there are several, and return their replies."""
        data = [self._read(task, client) for client in clients]
        if self._stacked is None or len(clients) == 1:
            return [self._alone(task, *each) for each in zip(clients, data, strict=True)]
        named = list(zip(clients, map(self._name, clients), data, strict=True))
        try:
            return self._stacked.replies(task, named)
        except Unstackable:
            if self.choice is None:
                raise
            self.choice.made = 1
        return [self._alone(task, *each) for each in zip(clients, data, strict=True)]

    def _read(self, task: Task, client: int) -> D:
        with named_errors(client, task.round, self._name(client)):
            return self._data[client]

    def _alone(self, task: Task, client: int, data: D) -> Reply:
        """Train one client."""
        self._reset()
        return train_client(
            self._algorithm,
            self._model,
            task,
            client=client,
            data=data,
            train=self._train,
            store=self._store,
            buffers=self._policy,
            personal=self._personal,
            name=self._name(client),
        )

    def model_of(self, state: ServerState, client: int | str) -> nn.Module:
        """Return a copy of the model as this client has it: the server's, with its own parts."""
        number = client_number(client, self.clients, self.names)
        task = Task(
            round=state.round,
            seed=0,
            lr=0.0,
            vectors=state.vectors,
            run=state.run,
            last_accepted=state.last_accepted,
        )
        with self._as_client(task, number):
            return copy.deepcopy(self._model)

    def evaluate(
        self,
        task: Task,
        cohort: Sequence[int],
        evaluate: EvaluateLocally[D],
        data: ClientDatasets[D] | None = None,
        *,
        tune: Train[D] | None = None,
    ) -> Iterator[Assessment]:
        """Evaluate each client's model, with its own parts, and yield the assessments.

        ``data`` are by default those that the clients train on; a client without examples gives no
        assessment.  With ``tune``, the model is evaluated once more after this training on the
        client's training data, and then put back: these metrics have ``_tuned`` in their names.
        """
        for client in cohort:
            name = self._name(client)
            with named_errors(client, task.round, name):
                examples = (self._data if data is None else data)[client]
                count = examples_in(examples)
            if not count:
                continue
            with (
                named_errors(client, task.round, name),
                self._as_client(task, client) as session,
            ):
                session.examples = count
                metrics = as_numbers(evaluate(self._model, examples), f"client {client}")
                if tune is not None:
                    with self._tuned(task, tune, client):
                        after = as_numbers(evaluate(self._model, examples), f"client {client}")
                    metrics |= {f"{name}_tuned": value for name, value in after.items()}
                session.metrics = metrics
            yield session.assessment

    def _tuned(self, task: Task, tune: Train[D], client: int) -> AbstractContextManager[None]:
        local, data = self._algorithm.local, self._data[client]
        return fine_tuned(self._model, local, task, tune, data, client=client)

    def _as_client(self, task: Task, client: int) -> AbstractContextManager[EvaluationSession]:
        """Set the model to a client's: the server's, with the client's own parts."""
        self._reset()
        return evaluation_session(
            self._model,
            task,
            client=client,
            store=self._store,
            buffers=self._policy,
            personal=self._personal,
        )

    def name(self, client: int) -> str:
        """Return what a client is called in records: its name, or its number if it has none."""
        return self._name(client) or str(client)

    def _name(self, client: int) -> str:
        return self.names[client] if self.names else ""

    def _reset(self) -> None:
        """Set what a client may keep to its first values: no client may begin with another's."""
        self._buffers.copy_(self._initial_buffers)
        self._own.copy_(self.newcomer)

    def commit(self, task: Task, clients: Sequence[int]) -> None:
        """Keep the vectors that these clients staged."""
        if self.keeps:
            for client in clients:
                self._store.settle(client, (task.run, task.round), task.resumable_from)
