"""The model, the data and the training, which know nothing of Flower."""

from functools import cache

import torch
from torch import nn

from fedlada import LocalTraining
from fedlada.data import STATISTICS, Augment, ClientData, Images, load

prepare = Augment(*STATISTICS["digits"], crop=0)
train = LocalTraining(steps=10, batch_size=20, prepare=prepare)


def model() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


@cache
def images(split: str) -> Images:
    return load("digits", split=split)


def client_data(client: int, clients: int) -> ClientData:
    """A client's share: the digits in order of their label, so that clients are unlike."""
    shown = images("train")
    rows = torch.tensor_split(shown.labels.argsort(stable=True), clients)[client]
    return ClientData(shown.inputs[rows], shown.labels[rows])
