"""The in-process engine: clients are trained one after the other in this process."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Generic, Protocol, TypeVar

from torch import nn

from ..algorithms import Algorithm
from ..client.round import D, Train, train_client
from ..client.store import MemoryStore, Store
from ..protocol.federated import BufferPolicy, clients_keep
from ..protocol.messages import Reply, Task, reply_parcel

__all__ = ["ClientDatasets", "InProcess"]

D_co = TypeVar("D_co", covariant=True)


class ClientDatasets(Protocol[D_co]):
    """The data of every client by number; it may be created on demand."""

    def __len__(self) -> int: ...
    def __getitem__(self, client: int, /) -> D_co: ...


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
        self.clients, self.keeps = len(data), clients_keep(algorithm, buffers)
        self._algorithm, self._model, self._data, self._train = algorithm, model, data, train
        self._store = store if store is not None else MemoryStore()
        self._buffers: BufferPolicy = buffers

    def exchange(self, task: Task, cohort: Sequence[int]) -> Iterator[Reply]:
        """Train each client of the cohort and yield its reply as the server receives it."""
        for client in cohort:
            reply = train_client(
                self._algorithm,
                self._model,
                task,
                client=client,
                data=self._data[client],
                train=self._train,
                store=self._store,
                buffers=self._buffers,
            )
            parcel = reply_parcel(reply, task)
            yield replace(reply, vectors=parcel.vectors, received=parcel.nbytes)

    def commit(self, task: Task, clients: Sequence[int]) -> None:
        """Keep the vectors that these clients staged."""
        if self.keeps:
            for client in clients:
                self._store.settle(client, (task.run, task.round), task.resumable_from)
