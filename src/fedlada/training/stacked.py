"""Many clients as one model: the batches of each, and the gradients of all at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import SimpleNamespace
from typing import cast

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.data import DataLoader

from .diagnosis import explained
from .examples import source_for
from .local import LocalTraining
from .pairing import paired_loss

__all__ = ["Drawn", "Together", "drawn"]

Pair = tuple[Tensor, Tensor]
"""Inputs and labels."""


@dataclass(frozen=True, eq=False)
class Drawn:
    """The batches of a client's round: one pair for each step, or one pair with all of them."""

    pairs: list[Pair]
    sizes: tuple[int, ...] = ()
    """The sizes of the batches, if one pair has all of them."""

    @property
    def steps(self) -> int:
        """The number of steps."""
        return len(self.sizes) or len(self.pairs)

    @cached_property
    def shapes(self) -> tuple[object, ...]:
        """What must be the same for clients whose batches are stacked."""
        return self.sizes, *((t.shape, t.dtype) for pair in self.pairs for t in pair)


def drawn(training: LocalTraining, model: nn.Module, data: object) -> Drawn:
    """Return the batches of a client's round.

    Torch's generator must be seeded as for training: the batches are then those of training.
    """
    with explained() as current:
        if training.prepare is not None or isinstance(data, DataLoader):
            return Drawn(list(training.ready(model, training.drawn(model, data), current)))
        # Nothing else draws, so all rows are read at once: it takes long to read few.
        source = source_for(model, data)
        rows = list(training.batches(len(source)))
        whole = source.batch(torch.cat(rows))
        return Drawn(list(training.ready(model, [whole], current)), tuple(map(len, rows)))


class Together:
    """The training of clients at once; those whose batches are alike must stand side by side."""

    def __init__(self, training: LocalTraining, model: nn.Module, clients: Sequence[Drawn]) -> None:
        self._training, self._model = training, model
        self._places: list[tuple[range, list[Pair]]] = []
        """Neighbours whose batches have the same shapes, and their stacked batches by step."""
        first = 0
        for last in range(1, len(clients) + 1):
            if last == len(clients) or clients[last].shapes != clients[first].shapes:
                self._places.append((range(first, last), _stacked(clients[first:last])))
                first = last

    def gradients(self, step: int, parameters: Mapping[str, Tensor]) -> tuple[list[Tensor], Tensor]:
        """Return the gradients and the losses of the first clients in a step.

        ``parameters`` are those of these clients, stacked, by name.
        """
        groups: dict[object, list[tuple[range, Pair]]] = {}
        count = len(next(iter(parameters.values())))
        for places, pairs in self._places:
            if places.start < count:
                pair = pairs[step]
                key = tuple((t.shape[1:], t.dtype) for t in pair)
                groups.setdefault(key, []).append((places, pair))
        if len(groups) == 1:
            return self._alike(parameters, [pair for _, pair in next(iter(groups.values()))])
        total = [torch.empty_like(p) for p in parameters.values()]
        losses = total[0].new_empty(count)
        for members in groups.values():
            rows = torch.tensor([i for places, _ in members for i in places], device=losses.device)
            some = {name: p[rows] for name, p in parameters.items()}
            parts, loss = self._alike(some, [pair for _, pair in members])
            for whole, part in zip((*total, losses), (*parts, loss), strict=True):
                whole[rows] = part.to(whole.dtype)
        return total, losses

    def _alike(
        self, parameters: Mapping[str, Tensor], pairs: Sequence[Pair]
    ) -> tuple[list[Tensor], Tensor]:
        """Return the gradients and losses of clients whose batches have the same shapes."""
        inputs, labels = (
            part[0] if len(part) == 1 else torch.cat(part) for part in zip(*pairs, strict=True)
        )
        loss, clip_norm = self._training.loss_for(labels), self._training.clip_norm

        def loss_of(values: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
            return paired_loss(loss, functional_call(self._model, values, (x,)), y)

        def gradient_of(
            values: dict[str, Tensor], x: Tensor, y: Tensor
        ) -> tuple[list[Tensor], Tensor]:
            gradient, value = grad_and_value(loss_of)(values, x, y)
            if clip_norm is not None:
                holders = [SimpleNamespace(grad=g) for g in gradient.values()]
                nn.utils.clip_grad_norm_(cast(list[Tensor], holders), clip_norm, foreach=False)
            return list(gradient.values()), value

        # Torch's faster kernels of attention know no stack: vmap would call them one by one.
        with sdpa_kernel(SDPBackend.MATH):
            gradient, losses = vmap(gradient_of)(dict(parameters), inputs, labels)
        return gradient, losses


def _stacked(clients: Sequence[Drawn]) -> list[Pair]:
    """Return the stacked batches of each step of clients whose batches have the same shapes."""
    pairs = [
        (torch.stack([inputs for inputs, _ in each]), torch.stack([labels for _, labels in each]))
        for each in zip(*(client.pairs for client in clients), strict=True)
    ]
    if not clients[0].sizes:
        return pairs
    inputs, labels = (torch.split(t, list(clients[0].sizes), dim=1) for t in pairs[0])
    return list(zip(inputs, labels, strict=True))
