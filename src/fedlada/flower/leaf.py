"""A leaf of an aggregation tree: a node that collects the replies of clients of its own.

The leaf runs the same collector as a server, with the same guard, on its share of the cohort, and
answers with the mergeable tally of it in place of one reply.
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

from ..client.round import D, Train
from ..engines.in_process import ClientDatasets, InProcess
from ..protocol.engine import Engine
from ..protocol.messages import Failure, Reply, Task
from ..server.collect import collect
from .client_side import agreed, answer_query, check_place, client_number, node_count
from .context_store import client_store
from .leaf_records import read_order, tally_record

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
    of n nodes, those of node i are clients i, i + n, i + 2n and so on.  The server's config says
    how many ``clients`` there are in all.
    """
    app = ClientApp()
    app.query()(answer_query)

    @app.train()
    def answer(message: Message, context: Context) -> Message:
        began, own = time.monotonic(), model()
        order, manifest = read_order(message.content, own)
        for client in order.share:
            check_place(client, context)
        assignment, task = order.assignment, order.assignment.task
        plan = dataclasses.replace(order.plan, algorithm=agreed(assignment, context))
        engine = InProcess(
            plan.algorithm,
            own,
            _Numbered(data(context), max(1, node_count(context))),
            train,
            store=client_store(manifest, context),
            buffers=plan.buffers,
        )
        tally = collect(
            plan,
            _OneByOne(engine, None if order.seconds is None else began + order.seconds),
            task,
            order.cohort,
            order.state,
            share=order.share,
            limits=order.limits,
        )
        return Message(tally_record(tally, task, client_number(context)), reply_to=message)

    return app


class _Numbered(Generic[D]):
    """The data of a leaf's clients by the client's number in the federation."""

    def __init__(self, own: ClientDatasets[D], nodes: int) -> None:
        self._own, self._nodes = own, nodes

    def __len__(self) -> int:
        return len(self._own) * self._nodes

    def __getitem__(self, client: int, /) -> D:
        return self._own[client // self._nodes]


class _OneByOne:
    """An engine whose clients fail alone: an error, or the end of time, is a client's failure."""

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
