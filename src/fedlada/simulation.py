"""``fedlada.simulate``: a whole federation in one process, as an iterable of round records."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Generic, cast

import torch
from torch import nn

from .algorithms import Algorithm, Vector, Vectors, algorithm as by_name
from .client import D, Train
from .federation import RoundRecord, ServerState, Weighting, federate
from .local import ClientDatasets, InProcess
from .parameters import BufferPolicy, federated_buffers, federated_parameters
from .sampling import FixedSize, Sampler
from .store import Store
from .training import LocalTraining

__all__ = ["Simulation", "simulate"]


class Simulation(Generic[D]):
    """A running federation: iterate over it to run it."""

    def __init__(
        self, records: Iterator[RoundRecord], state: ServerState, load: Callable[[], nn.Module]
    ) -> None:
        self.state = state
        """The server's state after the last record; pass it to :func:`simulate` to go on."""
        self._records, self._load = records, load

    def __iter__(self) -> Iterator[RoundRecord]:
        return self._records

    def run(self) -> list[RoundRecord]:
        """Run all the rounds that are left and return their records."""
        return list(self._records)

    @property
    def model(self) -> nn.Module:
        """The model with the server's parameters of now."""
        return self._load()


def simulate(
    model: nn.Module,
    data: ClientDatasets[D],
    *,
    algorithm: str | Mapping[str, Any] | Algorithm = "fedlada",
    rounds: int = 100,
    train: Train[D] | None = None,
    sampling: Sampler | None = None,
    seed: int = 0,
    lr_decay: float = 0.998,
    weighting: Weighting = "uniform",
    evaluate: Callable[[nn.Module], Mapping[str, float]] | None = None,
    evaluate_every: int = 1,
    buffers: BufferPolicy = "refuse",
    store: Store | None = None,
    state: ServerState | None = None,
) -> Simulation[D]:
    """Train ``model`` over the clients in ``data``, in this process.

    ``data[i]`` is the data of client i, given to ``train(model, data[i], optimizer)``; without a
    ``train`` of your own it is :class:`LocalTraining`, 50 steps of batch 50 on tensors.  Ten
    clients take part in a round unless ``sampling`` says otherwise.  Everything is a function of
    ``seed``; ``model`` itself is not touched.  With the ``state`` (and ``store``) of an earlier
    run it goes on from there until ``rounds`` are done in all.

    >>> run = simulate(LeNet(), clients, algorithm=algorithm("fedlada", lr=0.01), rounds=20)
    >>> for record in run:
    ...     print(record.round, record.metrics)
    """
    chosen = by_name(algorithm)
    working = copy.deepcopy(model)
    parameters = Vector(p.detach() for p in federated_parameters(working).values())
    own_buffers = federated_buffers(working, buffers)
    if state is None:
        averaged = own_buffers.clone() if buffers == "average" else None
        state = ServerState.new(chosen, parameters.clone(), averaged)
    initial_buffers = own_buffers.clone()

    @torch.no_grad()
    def load() -> nn.Module:
        parameters.copy_(state.vectors.x)
        own_buffers.copy_(state.vectors.get("buffers", initial_buffers))
        return working

    def metrics(_: Vectors, round: int) -> Mapping[str, float]:
        due = evaluate is not None and (round % evaluate_every == 0 or round == rounds)
        return evaluate(load()) if due and evaluate is not None else {}

    engine = InProcess(
        chosen,
        working,
        data,
        train if train is not None else cast(Train[D], LocalTraining()),
        store=store,
        buffers=buffers,
    )
    records = federate(
        chosen,
        engine,
        state,
        rounds=rounds,
        sampling=sampling if sampling is not None else FixedSize(min(10, len(data))),
        seed=seed,
        lr_decay=lr_decay,
        weighting=weighting,
        evaluate=metrics,
    )
    return Simulation(records, state, load)
