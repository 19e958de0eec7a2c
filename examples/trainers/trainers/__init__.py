"""Clients of one federation that train with the trainer they have."""

from collections.abc import Callable
from importlib import import_module
from typing import Any

TRAINERS = ("lightning", "transformers", "accelerate")


def trainer(name: str) -> Callable[..., Any]:
    """The training loop of a trainer; a node needs only the package that it names."""
    if name not in TRAINERS:
        raise ValueError(f"trainer is {name!r}; it must be one of {', '.join(TRAINERS)}")
    return getattr(import_module(f"trainers.{name}_client"), f"train_with_{name}")
