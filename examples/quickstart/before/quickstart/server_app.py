"""The ServerApp."""

import torch
from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from quickstart.task import Net

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    rounds = context.run_config["num-server-rounds"]
    strategy = FedAvg()
    run = strategy.start(grid, ArrayRecord(Net().state_dict()), num_rounds=rounds)
    last = run.evaluate_metrics_clientapp[rounds]
    print(f"accuracy {last['accuracy']:.3f}")
    torch.save(run.arrays.to_torch_state_dict(), context.run_config["final-model"])
