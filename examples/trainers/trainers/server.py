"""The ServerApp."""

import torch
from flwr.app import Context

from fedlada.flower import Finished, server_app
from trainers.task import evaluate, model


def save(run: Finished, context: Context) -> None:
    if context.run_config["save"]:
        torch.save(run.model.state_dict(), str(context.run_config["save"]))


app = server_app(model, evaluate=evaluate, finished=save)
