"""A ready-made training loop and evaluation, for users without their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import Optimizer

from ..errors import require
from .objective import Objective, objective_of

__all__ = ["Evaluation", "Labelled", "LocalTraining"]


class Labelled(Protocol):
    """Examples with labels, as tensors with one row per example."""

    @property
    def inputs(self) -> Tensor: ...
    @property
    def labels(self) -> Tensor: ...
    def __len__(self) -> int: ...


@dataclass(frozen=True, kw_only=True)
class LocalTraining:
    """Trains for a number of steps or epochs of shuffled mini-batches of a client's tensors.

    Randomness comes from torch's global generator, which an engine seeds for each client and
    round.  Clipping acts on the raw gradient, before the algorithm corrects it.
    """

    steps: int | None = 50
    epochs: int | None = None
    batch_size: int = 50
    clip_norm: float | None = None
    loss: Callable[[Tensor, Tensor], Tensor] | Objective = cross_entropy
    """A function of outputs and labels, or an objective.  The default becomes the mean squared
    error if labels are floating-point numbers."""
    prepare: Callable[[Tensor, torch.Generator], Tensor] | None = None
    """Converts a batch of inputs to the model's input, for example by augmenting it."""

    def __post_init__(self) -> None:
        require(
            (self.steps is None) != (self.epochs is None),
            f"steps is {self.steps} and epochs is {self.epochs}; give one and set the other None",
        )
        for name in ("steps", "epochs", "batch_size"):
            value = getattr(self, name)
            require(value is None or value > 0, f"{name} is {value}; it must be positive")

    def __call__(self, model: nn.Module, data: Labelled, optimizer: Optimizer) -> dict[str, float]:
        """Train ``model`` in place and return the mean loss of the batches."""
        model.train()
        total, count, criterion = torch.zeros(()), 0, self.loss_for(data.labels)
        for chosen in self.batches(len(data)):
            inputs = data.inputs[chosen]
            if self.prepare is not None:
                inputs = self.prepare(inputs, torch.default_generator)
            optimizer.zero_grad()
            loss = criterion(model(inputs), data.labels[chosen])
            loss.backward()  # type: ignore[no-untyped-call]
            if self.clip_norm is not None:
                nn.utils.clip_grad_norm_(model.parameters(), self.clip_norm)
            optimizer.step()
            total += loss.detach()
            count += 1
        return {"loss": float(total) / count}

    def loss_for(self, labels: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
        """Return the loss function for these labels."""
        if isinstance(self.loss, Objective):
            return self.loss.loss
        return objective_of(labels).loss if self.loss is cross_entropy else self.loss

    def batches(self, examples: int) -> Iterator[Tensor]:
        """Yield row numbers batch by batch; every epoch is a new permutation."""
        require(examples > 0, "a client has no examples; leave it out of the federation")
        left = self.steps if self.steps is not None else -1
        epochs = self.epochs if self.epochs is not None else -1
        while left and epochs:
            for chosen in torch.split(torch.randperm(examples), self.batch_size):
                yield chosen
                left -= 1
                if not left:
                    return
            epochs -= 1


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """Computes the metrics of a model on labelled examples.

    Without an ``objective`` the labels decide: classes are evaluated by loss and accuracy
    (between 0 and 1), and floating-point labels by mean squared error and coefficient of
    determination.
    """

    data: Labelled
    prepare: Callable[[Tensor], Tensor] | None = None
    batch_size: int = 1000
    objective: Objective | None = None
    split: str = "test"
    """The prefix of the metrics' names, as in ``test_accuracy``."""

    @torch.no_grad()
    def __call__(self, model: nn.Module) -> dict[str, float]:
        """Return the metrics of ``model``; each is exact over all examples."""
        require(len(self.data) > 0, "there are no examples to evaluate on; give some")
        model.eval()
        objective = self.objective or objective_of(self.data.labels)
        totals: dict[str, list[Tensor]] = {}
        for start in range(0, len(self.data), self.batch_size):
            inputs = self.data.inputs[start : start + self.batch_size]
            labels = self.data.labels[start : start + self.batch_size]
            outputs = model(self.prepare(inputs) if self.prepare is not None else inputs)
            for name, metric in objective.metrics.items():
                sums = [part.double() for part in metric.sums(outputs, labels)]
                known = totals.get(name)
                totals[name] = (
                    [total + part for total, part in zip(known, sums, strict=True)]
                    if known
                    else sums
                )
        return {
            f"{self.split}_{name}": metric.value(*totals[name])
            for name, metric in objective.metrics.items()
        }
