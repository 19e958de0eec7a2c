"""The model and the data, which know of no trainer."""

from functools import cache

import torch
from torch import nn
from torch.utils.data import TensorDataset

from fedlada import Evaluation
from fedlada.data import STATISTICS, load, normalise


def model() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


@cache
def digits(split: str) -> TensorDataset:
    images = load("digits", split=split)
    return TensorDataset(normalise(images.inputs, *STATISTICS["digits"]), images.labels)


def client_data(client: int, clients: int) -> TensorDataset:
    """A client's share: half of all digits evenly, half in order of their label."""
    inputs, labels = digits("train").tensors
    even, rest = torch.arange(len(labels)).chunk(2)
    by_label = rest[labels[rest].argsort(stable=True)]
    rows = torch.cat([even[client::clients], by_label.tensor_split(clients)[client]])
    return TensorDataset(inputs[rows], labels[rows])


def evaluate(model: nn.Module) -> dict[str, float]:
    return Evaluation(data=digits("test"))(model)
