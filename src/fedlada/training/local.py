"""A ready-made training loop, for users without their own."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from math import isfinite
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from ..devices import device_of, in_bfloat16, moved
from ..errors import check_counts, require
from .diagnosis import Batch, check_numbers, explained, fitted, whole_labels
from .examples import loaded, source_for
from .objective import Objective, check_default, objective_of
from .pairing import paired_loss

__all__ = ["LocalTraining"]


@dataclass(frozen=True, kw_only=True)
class LocalTraining:
    """Trains for a number of steps or epochs of shuffled mini-batches of a client's tensors.

    Randomness comes from torch's global generator, which an engine seeds for each client and
    round.  Clipping acts on the raw gradient, before the algorithm corrects it.  The optimizer
    gets a closure: an algorithm may take a second gradient of the same batch.
    """

    steps: int | None = None
    """Number of steps; 50 unless ``epochs`` are given."""
    epochs: int | None = None
    """Number of passes over the client's examples, instead of ``steps``."""
    batch_size: int = 50
    """Number of examples of a step; the last batch of a pass may have fewer."""
    clip_norm: float | None = None
    """The largest norm of a gradient; a longer one is shortened to it.  None clips none."""
    loss: Callable[[Tensor, Tensor], Tensor] | Objective = cross_entropy
    """A function of outputs and labels, or an objective.  The default becomes the mean squared
    error if labels are floating-point numbers."""
    prepare: Callable[[Tensor], Tensor] | None = None
    """Converts a batch of inputs to the model's input, for example by augmenting it.  It may draw
    from torch's global generator."""
    autocast: str | None = field(default=None, metadata={"new": True})
    """``"bfloat16"`` computes the forward pass and the loss with ``torch.autocast``; parameters,
    gradients and the optimizer stay in the type of the model."""

    def __post_init__(self) -> None:
        require(
            self.steps is None or self.epochs is None,
            f"steps is {self.steps} and epochs is {self.epochs}; give only one of them",
        )
        if self.epochs is None and self.steps is None:
            object.__setattr__(self, "steps", 50)
        check_counts(self, "steps", "epochs", "batch_size")
        require(
            callable(self.loss) or isinstance(self.loss, Objective),
            f"loss is {self.loss!r:.100}; it must be a function of outputs and labels, such as"
            " torch.nn.functional.mse_loss, or a fedlada.training.Objective",
        )
        require(
            self.autocast in (None, "bfloat16"),
            f"autocast is {self.autocast!r}; it must be 'bfloat16', or left out (float16 loses"
            " small gradients without a GradScaler, which would scale them for every algorithm)",
        )

    def __call__(self, model: nn.Module, data: object, optimizer: Optimizer) -> dict[str, float]:
        """Train ``model`` in place and return the mean loss of the batches.

        ``data`` is ``(inputs, labels)``, an object with both, a map-style dataset, or a DataLoader,
        whose batches have the size that it says.
        """
        model.train()
        total, count = torch.zeros((), device=device_of(model)), 0
        with explained() as current:
            for batch in self.ready(model, self.drawn(model, data), current):
                losses = list[Tensor]()
                closure = partial(self._gradient, model, optimizer, batch, current, losses)
                optimizer.step(closure)  # type: ignore[arg-type]
                total += losses[0]
                count += 1
        return self.report(float(total) / count, data, device_of(model))

    def report(self, loss: float, data: object, device: torch.device) -> dict[str, float]:
        """Return the metrics of a round; raise an error if ``data`` explain an infinite loss."""
        if not isfinite(loss):
            check_numbers(data, self.loss, prepare=self.prepare, device=device, scale=True)
        return {"loss": loss}

    def ready(
        self, model: nn.Module, batches: Iterable[tuple[Tensor, Tensor]], current: list[Batch]
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the batch of each step as the model takes it; ``current`` explains an error."""
        for count, (inputs, labels) in enumerate(batches):
            if count == 0 and self.loss is cross_entropy:
                check_default(labels)
            yield self._batch(model, inputs, labels, current)

    def drawn(self, model: nn.Module, data: object) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield inputs and labels of each step, on the model's device."""
        if isinstance(data, DataLoader):
            device = device_of(model)
            for inputs, labels in self._loaded(data):
                yield moved(inputs, device), moved(labels, device)
            return
        source = source_for(model, data)
        for rows in self.batches(len(source)):
            yield source.batch(rows)

    def _loaded(self, loader: DataLoader[Any]) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the batches of a DataLoader, over and over, until all steps or epochs are done."""
        require(
            loader.generator is None,
            "the DataLoader has a generator of its own, so its order would depend on all earlier"
            " rounds, and a resumed run would differ; leave generator out: torch's own is seeded"
            " for each client and round",
        )
        done = epoch = 0
        while epoch != self.epochs and done != self.steps:
            for batch in loaded(loader):
                yield batch
                done += 1
                if done == self.steps:
                    return
            require(done > 0, "a client's DataLoader has no batch; leave the client out")
            epoch += 1

    def _batch(
        self, model: nn.Module, inputs: Tensor, labels: Tensor, current: list[Batch]
    ) -> tuple[Tensor, Tensor]:
        """Return a batch for the model, and remember it in ``current`` to explain an error."""
        current[:] = [Batch(model, inputs, labels)]
        if self.prepare is not None:
            inputs = self.prepare(inputs)
        return fitted(inputs, model), fitted(whole_labels(labels), model)

    def _gradient(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        batch: tuple[Tensor, Tensor],
        current: list[Batch],
        losses: list[Tensor],
    ) -> Tensor:
        """Compute the gradient of a batch; return its loss and add it to ``losses``."""
        inputs, labels = batch
        optimizer.zero_grad()
        current[:] = [Batch(model, inputs, labels)]
        with nullcontext() if self.autocast is None else in_bfloat16(device_of(model)):
            outputs = model(inputs)
            if outputs.dtype == torch.bfloat16 and self.autocast:
                outputs = outputs.float()  # a loss may give labels the type of the outputs
            current[:] = [Batch(model, inputs, labels, outputs)]
            loss = paired_loss(self.loss_for(labels), outputs, labels)
        loss.backward()  # type: ignore[no-untyped-call]
        if self.clip_norm is not None:
            nn.utils.clip_grad_norm_(model.parameters(), self.clip_norm)
        losses.append(loss.detach())
        return loss

    def loss_for(self, labels: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
        """Return the loss function for these labels."""
        if isinstance(self.loss, Objective):
            return self.loss.loss
        return objective_of(labels).loss if self.loss is cross_entropy else self.loss

    def steps_with(self, examples: int) -> int:
        """Return the number of steps in a round of a client with so many examples."""
        if self.steps is not None:
            return self.steps
        return (self.epochs or 0) * math.ceil(examples / self.batch_size)

    def batches(self, examples: int) -> Iterator[Tensor]:
        """Yield row numbers batch by batch; every epoch is a new permutation."""
        require(examples > 0, "a client has no examples; leave it out of the federation")
        left = self.steps if self.steps is not None else -1
        epochs = self.epochs if self.epochs is not None else -1
        while left and epochs:
            for rows in torch.split(torch.randperm(examples), self.batch_size):
                yield rows
                left -= 1
                if not left:
                    return
            epochs -= 1
