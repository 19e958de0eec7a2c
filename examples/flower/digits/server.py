"""The ServerApp."""

import torch
from flwr.app import Context
from torch import nn

from digits.task import images, model, prepare
from fedlada import Evaluation
from fedlada.flower import Finished, server_app


def evaluate(model: nn.Module) -> dict[str, float]:
    return Evaluation(data=images("test"), prepare=prepare.plain)(model)


def save(run: Finished, context: Context) -> None:
    if context.run_config["save"]:
        torch.save(run.model.state_dict(), str(context.run_config["save"]))


app = server_app(model, evaluate=evaluate, finished=save)
