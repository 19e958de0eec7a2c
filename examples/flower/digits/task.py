"""The model, the data and the training, which know nothing of Flower."""

from functools import cache

import torch
from torch import nn

from fedlada import Evaluation, LocalTraining
from fedlada.data import STATISTICS, Augment, ClientData, Images, load

prepare = Augment(*STATISTICS["digits"], crop=0)
train = LocalTraining(steps=20, batch_size=20, prepare=prepare)


def model() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


@cache
def images(split: str) -> Images:
    return load("digits", split=split)


def client_data(client: int, clients: int, *, held_out: bool) -> ClientData:
    """A client's share: half of all digits evenly, half in order of their label; a fifth is held
    out."""
    shown = images("train")
    even, rest = torch.arange(len(shown.labels)).chunk(2)
    by_label = rest[shown.labels[rest].argsort(stable=True)]
    rows = torch.cat([even[client::clients], by_label.tensor_split(clients)[client]])
    chosen = rows[(torch.arange(len(rows)) % 5 == 0) == held_out]
    return ClientData(shown.inputs[chosen], shown.labels[chosen])


def evaluate(model: nn.Module, data: ClientData) -> dict[str, float]:
    return Evaluation(data=data, prepare=prepare.plain, split="local")(model)
