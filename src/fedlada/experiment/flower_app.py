"""An experiment as a Flower app: the server does the rounds of ``runs``, over Flower's grid.

``watching`` writes the app's config: ``directory`` of the run, on the server's machine, ``nodes``
that must be there, ``experiment``, the configuration as TOML, from which clients make their data,
and ``prepared``, a file on the clients' machine for what they made.
"""

from __future__ import annotations

import copy
import functools
import json
import os
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from torch import nn

from .. import Engine, Failure, LocalTraining, Reply, Task
from ..client import keeps
from ..data import Clients
from ..flower import answer_query, training
from ..flower.grid import GridEngine
from ..flower.packing import Manifest
from .config import Experiment
from .errors import ExperimentError
from .keys import flatten
from .problem import Problem, build
from .reading import experiment
from .runs import rounds

__all__ = ["client", "server"]

WAIT = 120.0
"""Seconds for the nodes to come, and to answer: each starts Python for that."""

server = ServerApp()
client = ClientApp()
client.query()(answer_query)


@server.main()
def serve(grid: Grid, context: Context) -> None:
    """Do the rounds that are left."""
    given = context.run_config
    config = _config(str(given["experiment"]))

    def engine(problem: Problem) -> Engine:
        return Complete(
            GridEngine(
                grid,
                Manifest.of(problem.model, "refuse"),
                algorithm=json.dumps([config.algorithm, config.settings]),
                keeps=keeps(config.optimizer(), "refuse"),
                wait=WAIT,
                nodes=int(given["nodes"]),
                clients=len(problem.clients),
            )
        )

    for record in rounds(config, Path(str(given["directory"])), engine=engine):
        print(f"round {record.round}/{config.federation.rounds}", flush=True)


@client.train()
def train(message: Message, context: Context) -> Message:
    """The round of one of this node's clients."""
    given = context.run_config
    untrained, clients, steps = _own(str(given["experiment"]), Path(str(given["prepared"])))
    model = copy.deepcopy(untrained)
    with training(message, context, model) as local:
        data = clients[local.client]
        local.metrics = steps(model, data, local.optimizer())
        local.examples = len(data)
    return local.reply


class Complete:
    """An engine of which every client replies: one that fails ends the run, as in process.

    Without it the round would end in other bits; the run goes on from the round before.
    """

    def __init__(self, engine: Engine) -> None:
        self.clients, self.keeps = engine.clients, engine.keeps
        self.commit = engine.commit
        self._engine = engine

    def exchange(self, task: Task, cohort: Sequence[int]) -> Iterator[Reply | Failure]:
        """The replies of the engine."""
        for reply in self._engine.exchange(task, cohort):
            if isinstance(reply, Failure):
                raise ExperimentError(
                    f"client {reply.client} failed in round {task.round + 1}: {reply.reason}."
                )
            yield reply


def _config(text: str) -> Experiment:
    return experiment(flatten(tomllib.loads(text)), source="the app's config")


@functools.cache
def _own(text: str, prepared: Path) -> tuple[nn.Module, Clients, LocalTraining]:
    """Model, data and training, made once on a machine: every message to a node is a process."""
    if not prepared.exists():
        problem = build(_config(text))
        part = prepared.with_suffix(f".{os.getpid()}")
        torch.save((problem.model, problem.clients, problem.train), part)
        part.replace(prepared)
    # Not weights alone; the directory is nobody else's to write to.
    own: tuple[nn.Module, Clients, LocalTraining] = torch.load(
        prepared, mmap=True, weights_only=False
    )
    return own
