"""The ServerApp."""

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedlada import Plan, algorithm
from fedlada.flower import ServerConfig, run_server
from quickstart.task import Net, accuracy

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    rounds = context.run_config["num-server-rounds"]
    plan = Plan.of(algorithm=algorithm("fedlada", lr=0.03), rounds=rounds)
    model, _ = run_server(grid, ServerConfig(plan=plan), Net)
    print(f"accuracy {accuracy(model):.3f}")
