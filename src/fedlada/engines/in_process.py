"""The in-process engine: clients are trained one after the other in this process."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Generic, Protocol, TypeVar

from torch import nn

from ..algorithms import Algorithm
from ..client.loop import named_errors
from ..client.round import D, Train, train_client
from ..client.store import MemoryStore, Store
from ..errors import require
from ..protocol.federated import BufferPolicy, clients_keep, federated_buffers
from ..protocol.messages import Reply, Task, reply_parcel

__all__ = ["ClientDatasets", "InProcess", "check_clients"]

D_co = TypeVar("D_co", covariant=True)


class ClientDatasets(Protocol[D_co]):
    """The data of every client by number; it may be created on demand."""

    def __len__(self) -> int: ...
    def __getitem__(self, client: int, /) -> D_co: ...


def check_clients(data: object) -> None:
    """Check that the data are those of clients by number, and that there are some."""
    kind = type(data).__name__
    require(
        not isinstance(data, Mapping),
        f"data are a {kind}; clients have numbers, so give a list, such as list(data.values())",
    )
    require(
        hasattr(data, "__len__") and hasattr(data, "__getitem__"),
        f"data are a {kind}; give a list with the data of each client, such as"
        " [(inputs_0, labels_0), (inputs_1, labels_1)]",
    )
    require(
        len(data) > 0,  # type: ignore[arg-type]
        f"data are a {kind} of 0 clients; give the data of one client or more, such as"
        " fedlada.data.split(inputs, labels, clients=10)",
    )


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
    ) -> None:
        check_clients(data)
        self.clients, self.keeps = len(data), clients_keep(algorithm, buffers)
        self._algorithm, self._model, self._data, self._train = algorithm, model, data, train
        self._store = store if store is not None else MemoryStore()
        self._policy: BufferPolicy = buffers
        self._buffers = federated_buffers(model, buffers)
        self._initial_buffers = self._buffers.clone()

    def exchange(self, task: Task, cohort: Sequence[int]) -> Iterator[Reply]:
        """Train each client of the cohort and yield its reply as the server receives it."""
        for client in cohort:
            with named_errors(client, task.round):
                data = self._data[client]
            # All clients share the model, and none may begin with the statistics of another.
            self._buffers.copy_(self._initial_buffers)
            reply = train_client(
                self._algorithm,
                self._model,
                task,
                client=client,
                data=data,
                train=self._train,
                store=self._store,
                buffers=self._policy,
            )
            parcel = reply_parcel(reply, task)
            yield replace(reply, vectors=parcel.vectors, received=parcel.nbytes)

    def commit(self, task: Task, clients: Sequence[int]) -> None:
        """Keep the vectors that these clients staged."""
        if self.keeps:
            for client in clients:
                self._store.settle(client, (task.run, task.round), task.resumable_from)
