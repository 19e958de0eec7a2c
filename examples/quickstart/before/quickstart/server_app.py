"""The ServerApp."""

from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from quickstart.task import Net, accuracy

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    rounds = context.run_config["num-server-rounds"]
    model = Net()
    strategy = FedAvg(fraction_evaluate=0.0)
    result = strategy.start(grid, ArrayRecord(model.state_dict()), num_rounds=rounds)
    model.load_state_dict(result.arrays.to_torch_state_dict())
    print(f"accuracy {accuracy(model):.3f}")
