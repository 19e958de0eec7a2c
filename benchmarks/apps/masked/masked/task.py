"""The model, the data, the training and the settings."""

import torch
from torch import nn

from fedlada import LocalTraining
from fedlada.data import ClientData
from fedlada.models import LeNet

ALGORITHM = "scaffold"
LOST = (2, 5)
"""The nodes that hang in the last round under masks, until they are killed."""
PRIVACY = {"noise": 0.5, "clip": 0.3, "delta": 1e-3, "quantile": 0, "steps": 3, "seeded": True}
RUNS = {"plain": None, "masked": {"least": 3, "group": 20}}
"""The masks of the two runs."""

train = LocalTraining(steps=3, batch_size=10)


def model() -> nn.Module:
    return LeNet()


def client_data(client: int) -> ClientData:
    """Noise, and labels that can be read from it."""
    generator = torch.Generator().manual_seed(client)
    inputs = torch.randn(60, 3, 32, 32, generator=generator)
    return ClientData(inputs, inputs[:, 0, 0, :10].argmax(1))
