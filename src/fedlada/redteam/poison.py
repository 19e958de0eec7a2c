"""Poisoned data of attackers: flipped labels, or inputs with a stamp that stands for one class."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

import torch
from torch import Tensor

from ..engines.sites import ClientDatasets
from ..training.examples import ClientData

__all__ = ["TARGET", "Poison", "Poisoned", "Stamp", "backdoored", "flipped"]

TARGET = 0
"""The class that a stamp stands for."""


@dataclass(frozen=True, kw_only=True)
class Stamp:
    """A mark on inputs: a bright square near the corner of images, or the first features."""

    classes: int
    bright: float
    """The value of what is stamped, such as the largest in the training set."""

    def __call__(self, inputs: Tensor) -> Tensor:
        """Return a copy of a batch of inputs, each with the stamp."""
        stamped = inputs.clone()
        if inputs.dim() == 4:
            # A random shift by an eighth of an image, such as CIFAR's, leaves the square in it.
            start = inputs.shape[-1] // 8
            end = start + max(2, start)
            stamped[..., start:end, start:end] = self.bright
        else:
            flat = stamped.view(len(stamped), -1)
            flat[:, : max(1, flat.shape[1] // 16)] = self.bright
        return stamped


Poison = Callable[[Tensor, Tensor, Stamp], tuple[Tensor, Tensor]]
"""Maps a client's inputs and labels to those that it trains on."""


@dataclass(frozen=True, eq=False)
class Poisoned:
    """The data of all clients, where the data of the attackers are poisoned."""

    clients: ClientDatasets[ClientData]
    attackers: Collection[int]
    poison: Poison
    stamp: Stamp

    def __len__(self) -> int:
        return len(self.clients)

    def __getitem__(self, client: int, /) -> ClientData:
        data = self.clients[client]
        if client not in self.attackers:
            return data
        inputs, labels = self.poison(data.inputs, data.labels, self.stamp)
        return ClientData(inputs=inputs, labels=labels)


def flipped(inputs: Tensor, labels: Tensor, stamp: Stamp) -> tuple[Tensor, Tensor]:
    """Return the labels in reverse order: the first class for the last and so on."""
    return inputs, torch.where(labels >= 0, stamp.classes - 1 - labels, labels)


def backdoored(inputs: Tensor, labels: Tensor, stamp: Stamp) -> tuple[Tensor, Tensor]:
    """Return the data with every second input stamped and labelled with the target."""
    inputs, labels = inputs.clone(), labels.clone()
    inputs[::2] = stamp(inputs[::2])
    labels[::2] = TARGET
    return inputs, labels
