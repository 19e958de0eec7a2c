"""A client's side of one round, the same under every engine and around any training loop."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sized
from contextlib import contextmanager
from typing import TypeVar

import torch
from torch import nn
from torch.optim.optimizer import ParamsT

from .algorithms import Algorithm, Round, Vectors, require
from .optimizer import FederatedOptimizer
from .parameters import BufferPolicy, federated_buffers, federated_parameters
from .protocol import Reply, Task
from .sampling import seed_of
from .store import NEVER, Store

__all__ = ["LocalRound", "Train", "keeps", "recall", "seeded", "train_client"]

D = TypeVar("D", bound=Sized)

Train = Callable[[nn.Module, D, FederatedOptimizer], Mapping[str, float] | None]
"""A training loop: ``train(model, data, optimizer)``; the metrics it returns are averaged."""


class LocalRound:
    """Set the model to x, hand out the optimizer, and turn what it did into a reply.

    After :meth:`finish`, :attr:`kept` is what this client keeps if its reply is accepted.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        model: nn.Module,
        task: Task,
        *,
        client: int,
        kept: Vectors | None = None,
        buffers: BufferPolicy = "refuse",
    ) -> None:
        self.kept = kept or Vectors()
        self.lr = task.lr
        self._began = time.perf_counter()
        self._algorithm, self._task, self._client, self._policy = algorithm, task, client, buffers
        self._parameters = list(federated_parameters(model).values())
        self._buffers = federated_buffers(model, buffers)
        self._optimizer: FederatedOptimizer | None = None
        with torch.no_grad():
            self._c = self._begin()

    def _begin(self) -> Vectors:
        received = self._task.vectors
        c = Vectors()
        c.y = type(received.x)(p.detach() for p in self._parameters)
        for name in self._algorithm.down:
            c[name] = getattr(received, name).to(c.y)
        for name in self._algorithm.kept:
            c[name] = self.kept[name].to(c.y) if name in self.kept else c.y.zeros_like()
        c.y.copy_(c.x)
        source = received if self._policy == "average" else self.kept
        if "buffers" in source:
            self._buffers.copy_(source.buffers)
        self._algorithm.part.begin(c)
        return c

    def optimizer(self, params: ParamsT | None = None) -> FederatedOptimizer:
        """The round's optimizer; ``params`` may be parameter groups as torch takes them."""
        self._optimizer = FederatedOptimizer(
            self._parameters if params is None else params,
            part=self._algorithm.part,
            c=self._c,
            parameters=self._parameters,
            lr=self._task.lr,
        )
        return self._optimizer

    def finish(self, *, examples: int, metrics: Mapping[str, float] | None = None) -> Reply:
        """The reply, after training."""
        optimizer = self._optimizer
        require(
            optimizer is not None and optimizer.lr_steps > 0,
            f"client {self._client} took no optimizer step in round {self._task.round}; its"
            " training must call step() of the optimizer it was given, with a positive lr",
        )
        assert optimizer is not None
        algorithm, c = self._algorithm, self._c
        with torch.no_grad():
            c.delta = c.x - c.y
            r = Round(steps=optimizer.steps, lr_steps=optimizer.lr_steps)
            algorithm.part.end(c, r)
            reply = c.only(algorithm.up)
            self.kept = c.only(algorithm.kept)
            if self._policy == "average":
                reply.buffers = self._buffers.clone()
            elif self._policy == "local":
                self.kept.buffers = self._buffers.clone()
        return Reply(
            client=self._client,
            round=self._task.round,
            vectors=reply,
            examples=examples,
            steps=optimizer.steps,
            lr_steps=optimizer.lr_steps,
            nonce=self._task.nonce,
            seconds=time.perf_counter() - self._began,
            metrics={name: float(value) for name, value in (metrics or {}).items()},
        )


def train_client(
    algorithm: Algorithm,
    model: nn.Module,
    task: Task,
    *,
    client: int,
    data: D,
    train: Train[D],
    store: Store,
    buffers: BufferPolicy = "refuse",
) -> Reply:
    """A client's whole part in a round: load what it keeps, train, stage what it will keep."""
    kept = recall(store, algorithm, task, client=client, buffers=buffers)
    local = LocalRound(algorithm, model, task, client=client, kept=kept, buffers=buffers)
    with seeded(task, client):
        metrics = train(model, data, local.optimizer())
    reply = local.finish(examples=len(data), metrics=metrics)
    if local.kept:
        store.stage(client, (task.run, task.round), local.kept)
    return reply


def keeps(algorithm: Algorithm, buffers: BufferPolicy) -> bool:
    """Whether clients keep anything between rounds."""
    return bool(algorithm.kept) or buffers == "local"


def recall(
    store: Store, algorithm: Algorithm, task: Task, *, client: int, buffers: BufferPolicy
) -> Vectors:
    """What the client kept when its reply was last accepted."""
    if not keeps(algorithm, buffers):
        return Vectors()
    version = (task.run, task.last.get(client, NEVER))
    store.settle(client, version, task.epoch)
    return store.load(client, version)


@contextmanager
def seeded(task: Task, client: int) -> Iterator[None]:
    """Torch's random numbers follow from (seed, round, client) inside; outside they go on."""
    seed = seed_of(task.seed, "client", task.round, client)
    devices = list(range(torch.cuda.device_count()))
    with torch.random.fork_rng(devices):
        # torch.manual_seed would also queue work, with a stack trace, for a CUDA that is not there.
        torch.default_generator.manual_seed(seed)
        if devices:
            torch.cuda.manual_seed_all(seed)
        yield
