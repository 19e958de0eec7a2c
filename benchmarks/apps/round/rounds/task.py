"""The model, the data and the loop, in torch alone: they know neither Flower nor fedlada."""

import torch
from torch import Tensor, nn

STEPS, BATCH, EXAMPLES, LR = 10, 20, 200, 0.1


def model() -> nn.Module:
    """LeNet."""
    return nn.Sequential(
        nn.Conv2d(3, 6, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(400, 120),
        nn.ReLU(),
        nn.Linear(120, 10),
    )


def data(client: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(client)
    inputs = torch.randn(EXAMPLES, 3, 32, 32, generator=generator)
    return inputs, inputs[:, 0, 0, :10].argmax(1)


def train(model: nn.Module, client: int, optimizer: torch.optim.Optimizer) -> None:
    inputs, labels = data(client)
    for chosen in torch.split(torch.randperm(EXAMPLES), BATCH)[:STEPS]:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs[chosen]), labels[chosen]).backward()
        optimizer.step()
