"""``fedlada.simulate``: a whole federation in one process, as an iterable of round records."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Generic, cast

from torch import nn

from .admission import Weighting
from .aggregation import Mean
from .algorithms import Algorithm, algorithm as by_name
from .checkpoint import Checkpoints
from .client import D, Train, keeps
from .federation import ServerState, federate
from .guard import Guard
from .local import ClientDatasets, InProcess
from .parameters import BufferPolicy
from .protocol import Engine
from .rounds import Aggregator, RoundRecord
from .sampling import FixedSize, Sampler
from .server import Evaluate, Server
from .store import DiskStore, Store
from .training import LocalTraining

__all__ = ["Simulation", "simulate"]


class Simulation(Generic[D]):
    """A running federation: iterate over it to run it."""

    def __init__(self, records: Iterator[RoundRecord], server: Server) -> None:
        self.state = server.state
        """The server's state after the last record; pass it to :func:`simulate` to go on."""
        self.resumed = server.resumed
        """The record of the last round that was done before, if the run goes on from one."""
        self._records, self._server = records, server

    def __iter__(self) -> Iterator[RoundRecord]:
        return self._records

    def run(self) -> list[RoundRecord]:
        """Run all the rounds that are left and return their records."""
        return list(self._records)

    @property
    def model(self) -> nn.Module:
        """The model with the server's parameters of now."""
        return self._server.model()


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
    evaluate: Evaluate | None = None,
    evaluate_every: int = 1,
    buffers: BufferPolicy = "refuse",
    store: Store | None = None,
    engine: Engine | None = None,
    state: ServerState | None = None,
    guard: Guard | None = Guard(),  # noqa: B008
    aggregator: Callable[[], Aggregator] = Mean,
    checkpoints: Checkpoints | str | Path | None = None,
    config: Mapping[str, object] | None = None,
) -> Simulation[D]:
    """Train ``model`` over the clients in ``data``, in this process.

    ``data[i]`` is the data of client i, given to ``train(model, data[i], optimizer)``; without a
    ``train`` of your own it is :class:`LocalTraining`, 50 steps of batch 50 on tensors.  Ten
    clients take part in a round unless ``sampling`` says otherwise.  Everything is a function of
    ``seed``; ``model`` itself is not touched.  With the ``state`` (and ``store``) of an earlier
    run it goes on from there until ``rounds`` are done in all.

    With an ``engine`` the clients run where it runs them, ``store`` is its own concern, and
    ``train`` and ``data`` here only say what the run is.

    With a directory for ``checkpoints`` a run that was killed at any moment is continued by
    calling the same again, and ends in the same bits.  What else makes the run what it is, such
    as how the data were split, belongs into ``config``: a directory refuses a run of another.

    >>> run = simulate(LeNet(), clients, algorithm=algorithm("fedlada", lr=0.01), rounds=20)
    >>> for record in run:
    ...     print(record.round, record.metrics)
    """
    chosen = by_name(algorithm)
    working = copy.deepcopy(model)
    sampler = sampling if sampling is not None else FixedSize(min(10, len(data)))
    training = train if train is not None else cast(Train[D], LocalTraining())
    saving = Checkpoints(checkpoints) if isinstance(checkpoints, str | Path) else checkpoints
    server = Server(
        working,
        chosen,
        rounds=rounds,
        buffers=buffers,
        state=state,
        checkpoints=saving,
        config={
            "clients": len(data),
            "train": training,
            "sampling": sampler,
            "seed": seed,
            "lr_decay": lr_decay,
            "weighting": weighting,
            "guard": guard,
            "aggregator": aggregator,
            **(config or {}),
        },
    )
    if engine is None:
        if store is None and saving is not None and keeps(chosen, buffers):
            store = DiskStore(saving.clients)
        engine = InProcess(chosen, working, data, training, store=store, buffers=buffers)
    records = federate(
        chosen,
        engine,
        server.state,
        rounds=rounds,
        sampling=sampler,
        seed=seed,
        lr_decay=lr_decay,
        weighting=weighting,
        guard=guard,
        aggregator=aggregator,
        evaluate=server.evaluation(evaluate, evaluate_every),
        save=server.save,
    )
    return Simulation(records, server)
