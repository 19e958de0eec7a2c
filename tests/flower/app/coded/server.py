"""The ServerApp: it runs several algorithms, one after the other, and saves what each ends with."""

import torch
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from coded.task import model, settings
from fedlada import Plan
from fedlada.flower import ServerConfig, run_server

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    given = context.run_config
    for run in given["runs"].split():
        name, codec, personal = [*run.split(":"), ""][:3]
        plan = Plan(
            algorithm=name,
            personal=personal,
            rounds=given["rounds"],
            seed=given["seed"],
            **settings(codec, given["cohort"]),
        )
        nodes = given["nodes"]
        config = ServerConfig(plan=plan, nodes=nodes, wait=180.0, num_partitions=nodes)
        state = run_server(grid, config, model).state
        saved = {key: vector.tensors for key, vector in state.vectors.items()}
        torch.save(saved, f"{given['save']}/{name}-{codec}{personal}.pt")
