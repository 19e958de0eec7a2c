"""The in-process engine: clients are trained one after the other in this very process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Generic, Protocol, TypeVar

import torch
from torch import nn

from .algorithms import Algorithm
from .client import LocalRound
from .optimizer import FederatedOptimizer
from .parameters import BufferPolicy
from .protocol import Reply, Task
from .sampling import seed_of
from .store import MemoryStore, Store

__all__ = ["ClientDatasets", "InProcess", "Train"]

D_co = TypeVar("D_co", bound="Countable", covariant=True)
D = TypeVar("D", bound="Countable")


class Countable(Protocol):
    """A client's data: anything with a number of examples."""

    def __len__(self) -> int: ...


class ClientDatasets(Protocol[D_co]):
    """The data of every client by number; nothing need exist before it is asked for."""

    def __len__(self) -> int: ...
    def __getitem__(self, client: int, /) -> D_co: ...


Train = Callable[[nn.Module, D, FederatedOptimizer], Mapping[str, float] | None]
"""A training loop: ``train(model, data, optimizer)``; the metrics it returns are averaged."""


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Torch's random numbers begin at ``seed`` inside, and outside go on as if nothing was."""
    devices = list(range(torch.cuda.device_count()))
    with torch.random.fork_rng(devices):
        # torch.manual_seed would also queue work, with a stack trace, for a CUDA that is not there.
        torch.default_generator.manual_seed(seed)
        if devices:
            torch.cuda.manual_seed_all(seed)
        yield


class InProcess(Generic[D]):
    """Runs every client of a cohort on one working copy of the model.

    Torch's random numbers are seeded by (seed, round, client) while a client trains and are put
    back afterwards, so a reply does not depend on who trained before.
    """

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
        self.clients = len(data)
        self._algorithm, self._model, self._data, self._train = algorithm, model, data, train
        self._store = store if store is not None else MemoryStore()
        self._buffers: BufferPolicy = buffers

    def exchange(self, task: Task, cohort: Sequence[int]) -> Iterator[Reply]:
        """Train each client of the cohort and give its reply."""
        for client in cohort:
            yield self._reply(task, client)

    def commit(self, round: int, clients: Sequence[int]) -> None:
        """Keep what these clients computed for themselves."""
        self._store.commit(round, clients)

    def _reply(self, task: Task, client: int) -> Reply:
        data = self._data[client]
        local = LocalRound(
            self._algorithm,
            self._model,
            task,
            client=client,
            kept=self._store.load(client),
            buffers=self._buffers,
        )
        with seeded(seed_of(task.seed, "client", task.round, client)):
            metrics = self._train(self._model, data, local.optimizer())
        reply = local.finish(examples=len(data), metrics=metrics)
        if local.kept:
            self._store.stage(client, task.round, local.kept)
        return reply
