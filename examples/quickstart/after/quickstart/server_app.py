"""The ServerApp."""

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedlada.flower import ServerConfig, run_server
from quickstart.task import Net, accuracy

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    rounds = context.run_config["num-server-rounds"]
    config = ServerConfig(algorithm="fedlada", settings="lr = 0.03", num_server_rounds=rounds)
    model, _ = run_server(grid, config, Net)
    print(f"accuracy {accuracy(model):.3f}")
