"""One ServerApp that gives each a round in turn and times it."""

import json
import time
from collections.abc import Callable
from pathlib import Path

import torch
from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from fedlada import Plan
from fedlada.algorithms import Vector, algorithm
from fedlada.engines import ServerState, federate
from fedlada.flower.grid import GridEngine
from rounds.task import model

OURS = ("fedavg", "fedlada")
WARM = "fedlada warm"
"""The rounds of `fedlada`, again, on warm nodes."""

app = ServerApp()

Play = Callable[[], dict[str, float]]


@app.main()
def main(grid: Grid, context: Context) -> None:
    nodes, results = int(context.run_config["nodes"]), Path(str(context.run_config["results"]))
    turn = results.with_suffix(".turn")
    turn.write_text("")
    mine = (*OURS, WARM) if context.run_config["warm"] else OURS
    states = {name: initial(name) for name in mine}
    plays = {name: ours(grid, name, states[name], nodes) for name in mine}
    plays["flower"] = flowers(grid, nodes)
    names = list(plays)
    for _ in range(int(context.run_config["turns"])):
        found = {}
        for name in names:
            turn.write_text(name)
            began = time.monotonic()
            more = plays[name]()
            found[name] = {"seconds": time.monotonic() - began} | more
        if WARM in states:
            found[WARM]["equal"] = equal(states[WARM], states["fedlada"])
        with results.open("a") as file:
            file.write(json.dumps(found) + "\n")
        # A node looks for work at fixed intervals, so a round can suffer from the one before it.
        names = names[1:] + names[:1]


def initial(name: str) -> ServerState:
    """The same model for all."""
    torch.manual_seed(0)
    parameters = Vector(p.detach().clone() for p in model().parameters())
    return ServerState.new(algorithm(name.split()[0]), parameters)


def equal(a: ServerState, b: ServerState) -> bool:
    return all(vector.equal(b.vectors[name]) for name, vector in a.vectors.items())


def ours(grid: Grid, name: str, state: ServerState, nodes: int) -> Play:
    """Rounds of one federation; its nodes are found before the first is timed."""
    plan = Plan(algorithm=name.split()[0], rounds=10**6, cohort=nodes)
    engine = GridEngine.of(plan, grid, model(), nodes=nodes, wait=120)
    rounds = federate(plan, engine, state)

    def play() -> dict[str, float]:
        record = next(rounds)
        if record.accepted != nodes:
            raise RuntimeError(f"{record.accepted} of {nodes} replies to {name}: {record.failures}")
        return {
            "train": record.client_metrics["train"],
            "cpu": record.client_metrics["cpu"],
            "down": record.bytes_down / nodes,
            "up": record.bytes_up / nodes,
        }

    return play


def flowers(grid: Grid, nodes: int) -> Play:
    """Rounds of Flower's own strategy, each going on from the model of the last."""
    strategy = FedAvg(fraction_train=1.0, fraction_evaluate=0.0, min_available_nodes=nodes)
    arrays = ArrayRecord(model().state_dict())

    def play() -> dict[str, float]:
        nonlocal arrays
        size = sum(array.numpy().nbytes for array in arrays.values())
        result = strategy.start(grid, arrays, num_rounds=1)
        arrays = result.arrays
        train = result.train_metrics_clientapp[1]["train"]
        return {"train": float(train), "down": size, "up": size}

    return play
