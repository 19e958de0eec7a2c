"""The ClientApp."""

from flwr.app import Context

from digits.task import client_data, model, train
from fedlada.data import ClientData
from fedlada.flower import client_app


def data(context: Context) -> ClientData:
    node = context.node_config
    return client_data(int(node["partition-id"]), int(node["num-partitions"]))


app = client_app(model, data, train)
