"""The ServerApp."""

import torch
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedlada import Plan, algorithm
from fedlada.flower import ServerConfig, run_server
from quickstart.task import Net

app = ServerApp()


def show(record, model):
    print(f"after round {record.round}: {dict(record.evaluation)}")


@app.main()
def main(grid: Grid, context: Context) -> None:
    rounds = context.run_config["num-server-rounds"]
    plan = Plan(algorithm=algorithm("fedlada", lr=0.03, weight_decay=0.001), rounds=rounds)
    run = run_server(grid, ServerConfig(plan=plan, evaluate_cohort="all"), Net, on_round=show)
    last = run.history[-1].evaluation
    print(f"accuracy {last['accuracy']:.3f}")
    torch.save(run.model.state_dict(), context.run_config["final-model"])
