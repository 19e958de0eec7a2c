"""The ClientApp."""

from coded.task import data, model, train
from fedlada.flower import client_app

app = client_app(model, lambda context: data(int(context.node_config["partition-id"])), train)
