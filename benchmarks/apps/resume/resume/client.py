"""The ClientApp."""

import time

from flwr.app import Context

from fedlada.data import ClientData
from fedlada.flower import client_app
from resume.task import client_data, model, train


def data(context: Context) -> ClientData:
    client, given = int(context.node_config["partition-id"]), context.run_config
    time.sleep(float(given["pause"]) + client * float(given["slower"]))
    return client_data(client)


app = client_app(model, data, train)
