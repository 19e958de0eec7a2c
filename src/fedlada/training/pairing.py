"""A loss that compares outputs with labels compares each output with its own label.

A model with one output returns [n, 1] and a column of labels is [n]. Elementwise functions of torch
would compare every output with every label, of which torch only warns, and the model learns
nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

__all__ = ["paired_loss"]

OF_OUTCOMES = (functional.binary_cross_entropy_with_logits, functional.binary_cross_entropy)
"""Losses whose labels 0 and 1 are floating-point numbers."""
OF_CLASSES = (functional.cross_entropy, functional.nll_loss, functional.multi_margin_loss)
"""Losses that look up each label among the outputs of its own example."""


def paired_loss(
    loss: Callable[[Tensor, Tensor], Tensor], outputs: Tensor, labels: Tensor
) -> Tensor:
    """Return the loss of outputs with their labels.

    If there are as many outputs as labels in another shape, and the loss would compare each output
    with each label, it gets the outputs in the shape of the labels.
    """
    if outputs.numel() == labels.numel():
        if loss in OF_OUTCOMES or isinstance(loss, nn.BCEWithLogitsLoss | nn.BCELoss):
            labels = labels.to(outputs.dtype)
        if outputs.shape != labels.shape:
            try:
                with _Watch(outputs.shape, labels.shape):
                    return loss(outputs, labels)
            except _Crossed:
                return loss(outputs.reshape(labels.shape), labels.to(outputs.dtype))
    return loss(outputs, labels)


class _Crossed(Exception):
    """A function was asked to compare each output with each label."""


class _Watch(TorchFunctionMode):
    """Raises an error as soon as a function of torch gets outputs and labels as they are."""

    def __init__(self, outputs: torch.Size, labels: torch.Size) -> None:
        super().__init__()
        self._outputs, self._labels = outputs, labels

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        named = kwargs or {}
        tensors = [t for t in (*args, *named.values()) if isinstance(t, Tensor)]
        # What depends on the outputs has a gradient; a loss may well compare labels with labels.
        outputs = any(t.requires_grad and t.shape == self._outputs for t in tensors)
        labels = any(not t.requires_grad and t.shape == self._labels for t in tensors)
        if outputs and labels and func not in OF_CLASSES:
            raise _Crossed
        return func(*args, **named)
