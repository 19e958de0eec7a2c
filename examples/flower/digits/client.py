"""The ClientApp."""

from functools import partial

from flwr.app import Context

from digits.task import client_data, evaluate, model, train
from fedlada.data import ClientData
from fedlada.flower import client_app


def data(context: Context, *, held_out: bool = False) -> ClientData:
    node = context.node_config
    return client_data(int(node["partition-id"]), int(node["num-partitions"]), held_out=held_out)


app = client_app(model, data, train, evaluate=evaluate, held_out=partial(data, held_out=True))
