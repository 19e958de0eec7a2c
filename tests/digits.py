"""Federations of handwritten digits: alike, and of sizes over decades."""

import torch
from torch import nn

from fedlada.data import ClientData, load, normalise, partition
from fedlada.data.digits import STATISTICS


def digits(split: str, *, clients: int | None = None, concentration: float = 0.6):
    """All digits of a split, or the same split over clients of one size."""
    data = load("digits", split=split)
    inputs = normalise(data.inputs, *STATISTICS)
    if clients is None:
        return ClientData(inputs=inputs, labels=data.labels)
    dealt = partition(
        data.labels, "client-prior", clients=clients, concentration=concentration
    ).indices
    return [ClientData(inputs=inputs[rows], labels=data.labels[rows]) for rows in dealt]


def unequal(clients: int, *, decades: float = 2.0, concentration: float = 0.6):
    """Clients whose sizes are spread evenly, on a log scale, over so many decades."""
    whole = digits("train")
    torch.manual_seed(0)
    sizes = 10 ** (decades * torch.linspace(0, 1, clients))[torch.randperm(clients)]
    sizes = (sizes / sizes.sum() * len(whole)).round().clamp_min(2).int().tolist()
    prior = torch.distributions.Dirichlet(torch.full((10,), concentration)).sample((clients,))
    weights = prior[:, whole.labels]  # a label's share in a client
    dealt = [torch.multinomial(w, n, replacement=True) for w, n in zip(weights, sizes, strict=True)]
    return [ClientData(inputs=whole.inputs[rows], labels=whole.labels[rows]) for rows in dealt]


def perceptron() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
