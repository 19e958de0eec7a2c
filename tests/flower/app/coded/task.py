"""The model, the data and the training; no import takes long, as every task is a new process."""

import torch

from fedlada import LocalTraining
from fedlada.data import ClientData

train = LocalTraining(steps=2, batch_size=8)


def model() -> torch.nn.Module:
    return torch.nn.Linear(300, 100)


def data(client: int) -> ClientData:
    generator = torch.Generator().manual_seed(client)
    inputs = torch.randn(40, 300, generator=generator)
    return ClientData(inputs, inputs[:, :100].argmax(1))
