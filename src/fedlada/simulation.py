"""``fedlada.simulate``: a whole federation in one process, as an iterable of round records."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Generic, Self, Unpack, cast

from torch import nn

from .client.round import D, Train
from .client.store import DiskStore, Store
from .client.training import LocalTraining
from .engines.in_process import ClientDatasets, InProcess
from .protocol.engine import Engine
from .protocol.federated import clients_keep
from .server.checkpoint import Checkpoints
from .server.loop import federate
from .server.model import Evaluate, Server
from .server.plan import Plan, PlanSettings
from .server.record import RoundRecord
from .server.sampling import FixedSize
from .server.state import ServerState

__all__ = ["Simulation", "simulate"]


class Simulation(Generic[D]):
    """A federation that runs while you iterate over it.

    It locks the directory of its checkpoints until all rounds are done, until :meth:`close`, or
    until the end of a ``with`` block.
    """

    def __init__(self, plan: Plan, engine: Engine, server: Server, evaluate: Evaluate | None):
        self.plan = plan
        self.state = server.state
        """The server's state after the last record; pass it to :func:`simulate` to continue."""
        self.resumed = server.resumed
        """The record of the last saved round if the run continues from a checkpoint, else None."""
        self._server = server
        self._records = self._rounds(engine, evaluate)

    def __iter__(self) -> Iterator[RoundRecord]:
        return self._records

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(self) -> list[RoundRecord]:
        """Run the remaining rounds and return their records."""
        return list(self._records)

    def close(self) -> None:
        """Release the directory of the checkpoints for another run."""
        self._server.close()

    @property
    def model(self) -> nn.Module:
        """A copy of the model with the server's current parameters."""
        return self._server.model()

    def _rounds(self, engine: Engine, evaluate: Evaluate | None) -> Iterator[RoundRecord]:
        try:
            yield from federate(
                self.plan,
                engine,
                self.state,
                evaluate=self._server.evaluation(evaluate),
                save=self._server.save,
            )
        except Exception:
            self.close()
            raise
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
    **plan: Unpack[PlanSettings],
) -> Simulation[D]:
    """Train ``model`` over the clients in ``data``, in this process.

    ``data[i]`` is the data of client i and is passed to ``train(model, data[i], optimizer)``.  The
    default ``train`` is :class:`LocalTraining`: 50 steps of batch size 50 on tensors.  All
    other settings are those of a :class:`Plan`: ``algorithm="fedlada"``, ``rounds=100``,
    ``sampling`` (a number of clients, a share such as 0.1, or a sampler; by default ten
    clients), ``seed``, ``lr_decay``, ``weighting``, ``target``, ``minimum``, ``guard``,
    ``aggregator``, ``buffers``, ``codec`` and ``evaluate_every``.

    All randomness follows from ``seed``, and ``model`` itself is not changed.  With the ``state``
    (and ``store``) of an earlier run, the run continues from there until ``rounds`` rounds are
    done in total.  With an ``engine``, the engine runs the clients and keeps their vectors;
    ``train`` and ``data`` then only describe the run.

    With a directory for ``checkpoints``, a run that was killed at any moment continues when the
    same call is made again, and its result has the same bits.  Put everything else that affects
    the result, such as how the data were split, into ``config``: a directory refuses a run with
    another configuration.

    >>> run = simulate(LeNet(), clients, algorithm=algorithm("fedlada", lr=0.01), rounds=20)
    >>> for record in run:
    ...     print(record.round, record.client_metrics)
    """
    plan.setdefault("sampling", FixedSize(min(10, len(data))))
    chosen = Plan.of(**plan)
    training = train if train is not None else cast(Train[D], LocalTraining())
    saving = Checkpoints(checkpoints) if isinstance(checkpoints, str | Path) else checkpoints
    working = copy.deepcopy(model)
    server = Server(
        chosen,
        working,
        state=state,
        checkpoints=saving,
        config={"clients": len(data), "train": training, **(config or {})},
    )
    if engine is None:
        keeps = clients_keep(chosen.algorithm, chosen.buffers)
        if store is None and saving is not None and keeps:
            store = DiskStore(saving.clients)
        engine = InProcess(
            chosen.algorithm, working, data, training, store=store, buffers=chosen.buffers
        )
    return Simulation(chosen, engine, server, evaluate)
