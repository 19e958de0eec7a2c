"""The ClientApp."""

import random
import time

from flwr.app import Context

from fedlada.data import ClientData
from fedlada.flower import client_app
from resume.task import client_data, model, train


def data(context: Context) -> ClientData:
    config = context.run_config
    more = random.SystemRandom().uniform(0, float(config["delay"]))  # no seed decides who is late
    time.sleep(float(config["pause"]) + more)
    return client_data(int(context.node_config["partition-id"]))


app = client_app(model, data, train)
