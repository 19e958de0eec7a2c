"""The ClientApp: two nodes hang in the middle of a round if they are asked to."""

import time
from pathlib import Path

from flwr.app import Context

from fedlada.data import ClientData
from fedlada.flower import client_app
from masked.task import LOST, client_data, model, train

directories: list[Path] = []


def data(context: Context) -> ClientData:
    directories.append(Path(str(context.run_config["directory"])))
    return client_data(int(context.node_config["partition-id"]))


def hanging(network, examples, optimizer, client):
    if client in LOST and (directories[0] / "hang").exists():
        (directories[0] / f"hanging-{client}").touch()
        time.sleep(600)
    return train(network, examples, optimizer)


app = client_app(model, data, hanging)
