"""A perceptron with one hidden layer, for inputs of any shape."""

from __future__ import annotations

from math import prod

from torch import nn

from ..errors import require
from .shapes import Shaped

__all__ = ["make"]

NAME = "mlp"


def make(data: Shaped, *, hidden: int = 32) -> nn.Module:
    """Make a perceptron with ``hidden`` hidden units for a training set."""
    require(hidden > 0, f"model.hidden is {hidden}; it must be positive.")
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(prod(data.shape), hidden),
        nn.ReLU(),
        nn.Linear(hidden, data.outputs),
    )
