"""The ClientApp."""

import time

from flwr.app import Context

from fedlada.data import ClientData
from fedlada.flower import client_app
from resume.task import client_data, model, train


def data(context: Context) -> ClientData:
    time.sleep(float(context.run_config["pause"]))
    return client_data(int(context.node_config["partition-id"]))


app = client_app(model, data, train)
