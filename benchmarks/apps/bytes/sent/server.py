"""The ServerApp: a few rounds, with the beginning and the end of the last one marked."""

from pathlib import Path

import torch
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedlada import Plan
from fedlada.algorithms import Vector
from fedlada.engines import ServerState, federate
from fedlada.flower.grid import GridEngine
from fedlada.models import ResNet18

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    torch.set_num_threads(1)
    given = context.run_config
    nodes, rounds = int(given["nodes"]), int(given["rounds"])
    run = str(given["run"])
    name, codec = run.split(":")
    plan = Plan(algorithm=name, codec=codec, rounds=rounds, cohort=nodes)
    torch.manual_seed(0)
    model = ResNet18(10)
    state = ServerState.new(plan.algorithm, Vector(p.detach() for p in model.parameters()))
    engine = GridEngine.of(plan, grid, model, nodes=nodes, wait=120)
    records = federate(plan, engine, state)
    for _ in range(rounds - 1):
        next(records)
    mark(given["counted"], "begin", run)
    record = next(records)
    if record.accepted != nodes:
        raise RuntimeError(f"{record.accepted} of {nodes} replies to {run}: {record.rejected}")
    mark(given["counted"], "end", record.bytes_down // nodes, record.bytes_up // nodes)


def mark(counted: object, *words: object) -> None:
    with Path(str(counted)).open("a") as file:
        file.write(" ".join(map(str, words)) + "\n")
