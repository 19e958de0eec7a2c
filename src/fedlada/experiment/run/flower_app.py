"""An experiment as a Flower app: the server runs the rounds over Flower's grid.

``on_flower`` writes the app's config: ``directory``, the run's directory on the server's machine;
``nodes``, the number of nodes to wait for; ``experiment``, the configuration as TOML, from which
clients make their model and data; and ``prepared``, a file on the clients' machine that caches
these.
"""

from __future__ import annotations

import copy
import functools
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ...data import Clients
from ...devices import chosen
from ...engines.around import Complete
from ...flower.apps import Connect, many_clients_app, serving_app
from ...protocol.engine import Engine
from ...training.local import LocalTraining
from ..config.experiment import Experiment
from ..config.keys import flatten
from ..config.reading import experiment
from .directory import RunDirectory
from .execute import rounds
from .problem import Problem, build

__all__ = ["client", "server"]

WAIT = 120.0
"""Seconds to wait until the nodes connect and answer; each must first start Python."""


def serve(given: Mapping[str, Any], connect: Connect) -> None:
    """Run the remaining rounds."""
    config = _config(str(given["experiment"]))
    directory = RunDirectory(Path(str(given["directory"])))

    def engine(problem: Problem) -> Engine:
        nodes, clients = int(given["nodes"]), len(problem.clients)
        return Complete(connect(config.plan(), problem.model, clients, nodes, WAIT))

    for record in rounds(config, directory, engine=engine):
        print(f"round {record.round}/{config.federation.rounds}", flush=True)


def own(given: Mapping[str, Any]) -> tuple[nn.Module, Clients, LocalTraining]:
    """Return a model to train, the data of all clients, and the local training."""
    untrained, clients, steps = _prepared(str(given["experiment"]), Path(str(given["prepared"])))
    device = chosen(_config(str(given["experiment"])).device)
    return copy.deepcopy(untrained).to(device), clients, steps


server = serving_app(serve)
client = many_clients_app(own)


def _config(text: str) -> Experiment:
    return experiment(flatten(tomllib.loads(text)), source="the app's config")


@functools.cache
def _prepared(text: str, prepared: Path) -> tuple[nn.Module, Clients, LocalTraining]:
    """Make model, data and training once per machine: each message starts a new process."""
    config = _config(text)  # also makes the modules it names importable
    if not prepared.exists():
        problem = build(config)
        part = prepared.with_suffix(f".{os.getpid()}")
        torch.save((problem.model, problem.clients, problem.train), part)
        part.replace(prepared)
    # The file holds more than weights. It is safe to unpickle: only this user can write it.
    made: tuple[nn.Module, Clients, LocalTraining] = torch.load(
        prepared, mmap=True, weights_only=False
    )
    return made
