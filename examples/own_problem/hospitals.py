"""Patients of many hospitals, whose length of stay is to be predicted: all that is our own.

The names here are used in hospitals.toml beside this file.  Data are made up: hospitals differ in
whom they treat, and the stay depends on age and severity in the same way everywhere.
"""

from dataclasses import dataclass

import torch
from torch import Generator, Tensor, nn
from torch.nn.functional import huber_loss

from fedlada.algorithms import Correction, Vector, Vectors
from fedlada.data import Examples
from fedlada.training import REGRESSION, Metric, Objective


def load(split: str, *, hospitals: int = 24, spread: float = 1.0, seed: int = 0) -> Examples:
    """Draw the patients of each hospital around a mean of its own; labels are days."""
    generator = Generator().manual_seed(seed)
    means = spread * torch.randn(hospitals, 4, generator=generator)
    sizes = torch.randint(40, 200, (hospitals,), generator=generator)
    generator.manual_seed(2 * seed + 1 + (split == "test"))
    where = torch.arange(hospitals).repeat_interleave(sizes)
    patients = means[where] + torch.randn(len(where), 4, generator=generator)
    age, severity, *_ = patients.unbind(1)
    noise = torch.randn(len(where), generator=generator)
    stay = 8 + 2 * age + 3 * torch.tanh(severity) + age * torch.sin(severity) + noise
    return Examples(patients, stay, owners=[f"hospital {n:02}" for n in where.tolist()])


def make(data: Examples, *, width: int = 32) -> nn.Module:
    """A network that gives one number per patient."""
    (features,) = data.shape
    return nn.Sequential(
        nn.Linear(features, width), nn.Tanh(), nn.Linear(width, 1), nn.Flatten(start_dim=0)
    )


def days_off(outputs: Tensor, labels: Tensor) -> tuple[Tensor, ...]:
    """Sum the absolute errors of a batch, and count its patients."""
    return (outputs - labels).abs().sum(), torch.tensor(len(labels))


STAY = Objective(
    name="length of stay",
    loss=huber_loss,
    metrics={
        "days": Metric(days_off, title="mean error in days"),
        "r2": REGRESSION.metrics["r2"],
    },
    score="r2",
)


@dataclass(frozen=True, kw_only=True)
class Pull(Correction):
    """Pull every weight back by a constant, as the lasso does: g + mu sign(y - x)."""

    mu: float = 0.01

    def step(self, client: Vectors, g: Vector, lr: float) -> None:
        self.inner.step(client, g.add((client.y - client.x).sign(), alpha=self.mu), lr)
