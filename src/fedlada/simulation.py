"""``fedlada.simulate``: a whole federation on one machine, as an iterable of round records."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Generic, Self, Unpack, cast

from torch import nn

from .algorithms import ALGORITHMS
from .client.round import D, Train
from .client.store import DiskStore, MemoryStore, Store
from .client.training import Evaluation, LocalTraining
from .curves import plot
from .engines.in_process import ClientDatasets, InProcess, check_clients
from .engines.ranks import Ranks, launched
from .engines.workers import Workers
from .errors import FedladaError, require
from .protocol.engine import Engine
from .protocol.federated import clients_keep, federated_parameters
from .server.checkpoint import Checkpoints
from .server.collect import collect
from .server.loop import federate
from .server.model import Evaluate, Server
from .server.plan import Plan, PlanSettings
from .server.record import RoundRecord
from .server.sampling import FixedSize
from .server.state import ServerState

if TYPE_CHECKING:
    from .curves import Figure

__all__ = ["Simulation", "simulate"]


class Simulation(Generic[D]):
    """A federation that runs while you iterate over it.

    It locks the directory of its checkpoints until all rounds are done, until :meth:`close`, or
    until the end of a ``with`` block.
    """

    def __init__(
        self,
        plan: Plan,
        engine: Engine,
        server: Server,
        evaluate: Evaluate | None,
        workers: Workers | Ranks | None = None,
    ) -> None:
        self.plan = plan
        self.state = server.state
        """The server's state after the last record; pass it to :func:`simulate` to continue."""
        self.resumed = server.resumed
        """The record of the last saved round if the run continues from a checkpoint, else None."""
        self.records: list[RoundRecord] = []
        """The records of the rounds that this object has run so far."""
        self.score = evaluate.score if isinstance(evaluate, Evaluation) else None
        """The name of the metric by which models are compared, if :class:`Evaluation` says it."""
        self._server, self._workers = server, workers
        self._running = self._rounds(engine, evaluate)

    def __iter__(self) -> Iterator[RoundRecord]:
        return self._running

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(self) -> list[RoundRecord]:
        """Run the remaining rounds and return their records."""
        return list(self._running)

    def plot(self, metric: str | None = None) -> Figure:
        """Draw a metric by rounds, of the rounds run so far, and return matplotlib's figure.

        By default it is the score of the evaluation.  :func:`fedlada.plot` draws several runs.
        """
        return plot(self, metric=metric)

    def close(self) -> None:
        """Release the directory of the checkpoints for another run, and end the workers."""
        self._server.close()
        if self._workers is not None:
            self._workers.close()

    @property
    def model(self) -> nn.Module:
        """A copy of the model with the server's current parameters."""
        return self._server.model()

    def _rounds(self, engine: Engine, evaluate: Evaluate | None) -> Iterator[RoundRecord]:
        if isinstance(self._workers, Ranks) and self._workers.rank:
            self._workers.serve(self.plan, engine)
            self.close()
            return
        try:
            for record in federate(
                self.plan,
                engine,
                self.state,
                evaluate=self._server.evaluation(evaluate),
                save=self._server.save,
                collector=collect if self._workers is None else self._workers.collect,
            ):
                self.records.append(record)
                yield record
        except Exception:
            self.close()
            raise
        finally:
            if self._workers is not None:  # also after an interrupt
                self._workers.close()
        self.close()


def simulate(
    model: nn.Module,
    data: ClientDatasets[D],
    *,
    train: Train[D] | None = None,
    evaluate: Evaluate | None = None,
    store: Store | None = None,
    engine: Engine | None = None,
    state: ServerState | None = None,
    checkpoints: Checkpoints | str | Path | None = None,
    config: Mapping[str, object] | None = None,
    workers: int | None = None,
    **plan: Unpack[PlanSettings],
) -> Simulation[D]:
    """Train ``model`` over the clients in ``data``, in this process or in several ``workers``.

    ``data[i]`` is the data of client i and is passed to ``train(model, data[i], optimizer)``.  The
    default ``train`` is :class:`LocalTraining`: 50 steps of batch size 50.  It takes
    ``(inputs, labels)`` as tensors or arrays, or a map-style ``Dataset``, for each client;
    ``fedlada.data.split`` and ``by_owner`` make such clients of one set.  All other settings are
    those of a :class:`Plan`: ``algorithm="fedlada"``, ``rounds=100``, ``sampling`` (a number of
    clients, a share such as 0.1, or a sampler; by default ten clients), ``seed``, ``lr_decay``,
    ``weighting``, ``target``, ``minimum``, ``guard``, ``aggregator``, ``buffers``, ``codec`` and
    ``evaluate_every``.

    All randomness follows from ``seed``, and ``model`` itself is not changed.  With the ``state``
    (and ``store``) of an earlier run, the run continues from there until ``rounds`` rounds are
    done in total.  With an ``engine``, the engine runs the clients and keeps their vectors;
    ``train`` and ``data`` then only describe the run.

    With a directory for ``checkpoints``, a run that was killed at any moment continues when the
    same call is made again, and its result has the same bits.  Put everything else that affects
    the result, such as how the data were split, into ``config``: a directory refuses a run with
    another configuration.

    With ``workers``, as many forked processes share the clients of each round, with one thread
    each; a script that ``torchrun`` started shares them among its ranks, and rank 0 has the records
    and the result.  The bits are the same, and a run may be continued with another number.

    >>> run = simulate(LeNet(), clients, algorithm=algorithm("fedlada", lr=0.01), rounds=20)
    >>> for record in run:
    ...     print(record.round, record.client_metrics)
    """
    _check(model, data, plan, train=train, evaluate=evaluate)
    pool = _workers(workers, engine)
    plan.setdefault("sampling", FixedSize(min(10, len(data))))
    chosen = Plan.of(**plan)
    training = train if train is not None else cast(Train[D], LocalTraining())
    saving = Checkpoints(checkpoints) if isinstance(checkpoints, str | Path) else checkpoints
    working = copy.deepcopy(model)
    described = {"clients": len(data), "train": training, **(config or {})}
    own = None if isinstance(pool, Ranks) and pool.rank else saving
    server = Server(chosen, working, state=state, checkpoints=own, config=described)
    if engine is None:
        if clients_keep(chosen.algorithm, chosen.buffers):
            store = _store(store, saving, pool)
        parts = chosen.algorithm, working, data, training
        engine = InProcess(*parts, store=store, buffers=chosen.buffers)
    return Simulation(chosen, engine, server, evaluate, pool)


def _workers(count: int | None, engine: Engine | None) -> Workers | Ranks | None:
    """Return those that share the clients of a run, or None if it is one process."""
    if count is None:
        return Ranks() if engine is None and launched() else None
    require(
        type(count) is int and count >= 1,
        f"workers is {count!r}; it must be a whole number of processes, 1 or more",
    )
    if count == 1:
        return None
    require(
        engine is None,
        f"workers is {count} and there is an engine, which runs the clients itself; give one of"
        " the two",
    )
    require(
        not launched(),
        f"workers is {count}, and torchrun has started several processes already; leave workers"
        " out, and choose their number with --nproc-per-node",
    )
    return Workers(count)


def _store(
    given: Store | None, saving: Checkpoints | None, workers: Workers | Ranks | None
) -> Store | None:
    """Return where clients keep their vectors: files, if more than one process needs them."""
    require(
        workers is None or not isinstance(given, MemoryStore),
        "the store is a MemoryStore, and several processes share no memory; give"
        " store=fedlada.DiskStore(directory)",
    )
    if given is None and saving is not None:
        return DiskStore(saving.clients)
    if given is None and isinstance(workers, Workers):
        return DiskStore(workers.directory())
    require(
        given is not None or workers is None,
        "clients keep vectors between rounds, and each may be on another rank next time; give"
        " checkpoints, or store=fedlada.DiskStore(directory), in a directory that all ranks share",
    )
    return given


def _check(model: object, data: object, plan: Mapping[str, object], **called: object) -> None:
    """Check what can be checked before the first round."""
    check_clients(data)
    for name, function in called.items():
        require(
            function is None or callable(function),
            f"{name} is {function!r:.100}; it must be a function, or left out",
        )
    _check_names(plan)
    federated_parameters(cast(nn.Module, model))


def _check_names(plan: Mapping[str, object]) -> None:
    """Say where a setting belongs that is none of a plan's, and is known elsewhere."""
    training = [f.name for f in dataclasses.fields(LocalTraining)]
    settings = {name for algorithm in ALGORITHMS.values() for name in algorithm.settings()}
    for name, value in plan.items():
        if name in training:
            raise FedladaError(
                f"{name}={value!r:.50} is a setting of the local training; give"
                f" train=fedlada.LocalTraining({name}={value!r:.50})"
            )
        if name in settings:
            raise FedladaError(
                f"{name}={value!r:.50} is a setting of the algorithm; give"
                f' algorithm=fedlada.algorithm("fedlada", {name}={value!r:.50})'
            )
