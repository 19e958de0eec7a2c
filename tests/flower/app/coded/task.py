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


def settings(codec: str, cohort: int) -> dict:
    """What the name of a run's codec stands for; private runs have their own."""
    if codec not in ("private", "masked"):
        return {"codec": codec, "cohort": cohort}
    privacy = {"noise": 0.5, "clip": 0.3, "delta": 1e-3, "quantile": 0, "steps": 2, "seeded": True}
    masks = {"least": 3, "group": 6} if codec == "masked" else None
    return {"cohort": "all", "privacy": privacy, "masks": masks}
