"""The ServerApp: it runs several algorithms, one after the other, and saves what each ends with."""

import torch
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from coded.task import model
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
            codec=codec,
            personal=personal,
            rounds=given["rounds"],
            cohort=given["cohort"],
            seed=given["seed"],
        )
        state = run_server(
            grid, ServerConfig(plan=plan, nodes=given["nodes"], wait=180.0), model
        ).state
        saved = {key: vector.tensors for key, vector in state.vectors.items()}
        torch.save(saved, f"{given['save']}/{name}-{codec}{personal}.pt")
