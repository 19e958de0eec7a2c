"""Many clients as one model: the batches of each, and the gradients of all at once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from types import SimpleNamespace
from typing import cast

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap
from torch.utils.data import DataLoader

from .diagnosis import explained
from .examples import source_for
from .local import LocalTraining
from .pairing import paired_loss

__all__ = ["drawn", "gradients"]


def drawn(training: LocalTraining, model: nn.Module, data: object) -> list[tuple[Tensor, Tensor]]:
    """Return the batches of all steps of a client's round.

    Torch's generator must be seeded as for training: the batches are then those of training.
    """
    with explained() as current:
        batches: Iterable[tuple[Tensor, Tensor]] = training.drawn(model, data)
        if training.prepare is None and not isinstance(data, DataLoader):
            # Nothing else draws, so all rows are read at once: it takes long to read few.
            source = source_for(model, data)
            rows = list(training.batches(len(source)))
            sizes = [len(part) for part in rows]
            parts = (torch.split(t, sizes) for t in source.batch(torch.cat(rows)))
            batches = zip(*parts, strict=True)
        return list(training.ready(model, batches, current))


def gradients(
    training: LocalTraining,
    model: nn.Module,
    parameters: dict[str, Tensor],
    batches: Sequence[tuple[Tensor, Tensor]],
) -> tuple[list[Tensor], Tensor]:
    """Return the gradients and the losses of a batch of each client.

    ``parameters`` are those of all clients, stacked, by name.  Clients whose batches have the same
    shapes are computed together.
    """
    groups: dict[object, list[int]] = {}
    for client, pair in enumerate(batches):
        groups.setdefault(tuple((t.shape, t.dtype) for t in pair), []).append(client)
    if len(groups) == 1:
        return _alike(training, model, parameters, batches)
    total = [torch.empty_like(p) for p in parameters.values()]
    losses = total[0].new_empty(len(batches))
    for clients in groups.values():
        rows = torch.tensor(clients, device=losses.device)
        some = {name: p[rows] for name, p in parameters.items()}
        parts, loss = _alike(training, model, some, [batches[client] for client in clients])
        for whole, part in zip((*total, losses), (*parts, loss), strict=True):
            whole[rows] = part.to(whole.dtype)
    return total, losses


def _alike(
    training: LocalTraining,
    model: nn.Module,
    parameters: dict[str, Tensor],
    batches: Sequence[tuple[Tensor, Tensor]],
) -> tuple[list[Tensor], Tensor]:
    """Return the gradients and losses of clients whose batches have the same shapes."""
    inputs, labels = (torch.stack(part) for part in zip(*batches, strict=True))
    loss = training.loss_for(labels)

    def loss_of(values: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return paired_loss(loss, functional_call(model, values, (x,)), y)

    def gradient_of(
        values: dict[str, Tensor], x: Tensor, y: Tensor
    ) -> tuple[dict[str, Tensor], Tensor]:
        gradient, value = grad_and_value(loss_of)(values, x, y)
        if training.clip_norm is not None:
            holders = [SimpleNamespace(grad=g) for g in gradient.values()]
            nn.utils.clip_grad_norm_(cast(list[Tensor], holders), training.clip_norm, foreach=False)
        return gradient, value

    gradient, losses = vmap(gradient_of)(parameters, inputs, labels)
    return list(gradient.values()), losses
