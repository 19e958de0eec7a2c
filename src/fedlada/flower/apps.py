"""Flower apps around callables, so that no code outside this folder needs to import Flower."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from torch import nn

from ..client.round import D, Train, asked
from ..engines.sites import ClientDatasets
from ..protocol.engine import Engine
from ..server.plan import Plan
from ..training.examples import examples_in
from .client import answer_query, training
from .grid import GridEngine

__all__ = ["Connect", "many_clients_app", "serving_app"]

Connect = Callable[[Plan, nn.Module, int, int, float], Engine]
"""Makes an engine from a plan, a model, the number of clients, the number of nodes and the seconds
to wait for the nodes."""


def serving_app(serve: Callable[[Mapping[str, Any], Connect], None]) -> ServerApp:
    """Make a ServerApp that calls ``serve(run_config, connect)``."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        def connect(
            plan: Plan, model: nn.Module, clients: int, nodes: int, wait: float
        ) -> GridEngine:
            return GridEngine.of(
                plan, grid, model, clients=clients, nodes=nodes, partitions=nodes, wait=wait
            )

        serve(context.run_config, connect)

    return app


def many_clients_app(
    parts: Callable[[Mapping[str, Any]], tuple[nn.Module, ClientDatasets[D], Train[D]]],
) -> ClientApp:
    """Make a ClientApp whose nodes have several clients each.

    ``parts(run_config)`` returns a model for this process, the data of all clients and the
    training loop.
    """
    app = ClientApp()
    app.query()(answer_query)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        model, clients, steps = parts(context.run_config)
        with training(message, context, model) as local:
            data = clients[local.client]
            more = asked(steps, client=local.client, round=local.round)
            local.metrics = steps(model, data, local.optimizer(), **more)
            local.examples = examples_in(data)
        return local.reply

    return app
