"""The ServerApp: it times the rounds of both runs and saves what they end with."""

import json
import time
from pathlib import Path

import torch
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedlada import Plan
from fedlada.flower import ServerConfig, run_server
from masked.task import ALGORITHM, PRIVACY, RUNS, model

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    given = context.run_config
    directory, nodes, rounds = Path(str(given["directory"])), given["nodes"], given["rounds"]
    for name, masks in RUNS.items():
        ends = list[float]()

        def after(record, model, name=name, ends=ends):
            ends.append(time.monotonic())
            if name == "masked" and record.round == rounds - 1:
                (directory / "hang").touch()

        plan = Plan(
            algorithm=ALGORITHM,
            rounds=rounds,
            cohort="all",
            privacy=PRIVACY,
            masks=masks,
            deadline=90.0,
        )
        config = ServerConfig(plan=plan, nodes=nodes, num_partitions=nodes, wait=180.0)
        run = run_server(grid, config, model, on_round=after)
        vectors = {key: vector.tensors for key, vector in run.state.vectors.items()}
        torch.save(vectors, directory / f"{name}.pt")
        (directory / f"{name}.json").write_text(json.dumps(ends))
