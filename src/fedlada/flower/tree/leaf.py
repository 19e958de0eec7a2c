"""A leaf of an aggregation tree: a node that collects the replies of several clients.

The leaf runs the same collector as a server, with the same guard, on its share of the cohort.  It
answers with a mergeable tally instead of one reply.
"""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Generic

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from torch import nn

from ...client.round import D, Train
from ...engines.in_process import InProcess
from ...engines.sites import ClientDatasets
from ...protocol.engine import Engine
from ...protocol.messages import Failure, Reply, Task
from ..client import agreed, answer_query, built, check_place, client_number, node_count
from ..context_store import client_store
from ..masks import check_masked
from .records import read_order, tally_record

__all__ = ["leaf_app"]

log = logging.getLogger("fedlada")


def leaf_app(
    model: Callable[[], nn.Module],
    data: Callable[[Context], ClientDatasets[D]],
    train: Train[D],
) -> ClientApp:
    """Make a ClientApp for a node that has several clients and sends the sum of their replies.

    ``model()`` builds the same model as the server and ``train(model, data, optimizer)`` is a
    training loop.  ``data(context)`` returns a list with the data of each of this node's clients:
    of n nodes, node i has clients i, i + n, i + 2n and so on.  The server's config has the number
    of all ``clients``.
    """
    app = ClientApp()
    app.query()(answer_query)

    @app.train()
    def answer(message: Message, context: Context) -> Message:
        began, network = time.monotonic(), built(model, message, context)
        received = read_order(message.content, network)
        order, seconds = received.order, received.seconds
        for client in order.clients:
            check_place(client, context)
        check_masked(context, hidden=False)
        algorithm = agreed(received.assignment, context)
        plan = dataclasses.replace(received.plan, algorithm=algorithm)
        engine = InProcess(
            algorithm,
            network,
            _Numbered(data(context), max(1, node_count(context))),
            train,
            store=client_store(received.manifest, context),
            buffers=plan.buffers,
            personal=plan.personal,
        )
        tally = order.collect(plan, _OneByOne(engine, None if seconds is None else began + seconds))
        return Message(tally_record(tally, order.task, client_number(context)), reply_to=message)

    return app


class _Numbered(Generic[D]):
    """The data of a leaf's clients by the client's number in the federation."""

    def __init__(self, datasets: ClientDatasets[D], nodes: int) -> None:
        self._datasets, self._nodes = datasets, nodes

    def __len__(self) -> int:
        return len(self._datasets) * self._nodes

    def __getitem__(self, client: int, /) -> D:
        return self._datasets[client // self._nodes]


class _OneByOne:
    """An engine in which an error, or the deadline, is the failure of one client only."""

    def __init__(self, engine: Engine, end: float | None) -> None:
        self._engine, self._end = engine, end
        self.clients, self.keeps, self.commit = engine.clients, engine.keeps, engine.commit

    def exchange(self, task: Task, cohort: Sequence[int]) -> Iterator[Reply | Failure]:
        for client in cohort:
            if self._end is not None and time.monotonic() > self._end:
                yield Failure(client=client, reason="deadline")
                continue
            try:
                yield from list(self._engine.exchange(task, [client]))
            except Exception as error:  # as Flower does for a ClientApp that raises
                log.warning("client %d failed in round %d: %r", client, task.round + 1, error)
                yield Failure(client=client, reason="client error")
