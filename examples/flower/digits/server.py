"""The ServerApp."""

import torch
from flwr.app import Context
from torch import nn

from digits.task import images, model, prepare
from fedlada import Evaluation, ServerState
from fedlada.flower import server_app


def evaluate(model: nn.Module) -> dict[str, float]:
    return Evaluation(data=images("test"), prepare=prepare.plain)(model)


def save(model: nn.Module, state: ServerState, context: Context) -> None:
    if context.run_config["save"]:
        vectors = {name: vector.tensors for name, vector in state.vectors.items()}
        torch.save(vectors, str(context.run_config["save"]))


app = server_app(model, evaluate=evaluate, finished=save)
