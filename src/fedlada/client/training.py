"""A ready-made training loop and evaluation, for users without their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import Optimizer

from ..errors import require
from .labelled import Labelled, Source, source_of
from .mistakes import Batch, explained, fitted, whole_labels
from .objective import Objective, objective_of

__all__ = ["Evaluation", "Labelled", "LocalTraining"]


@dataclass(frozen=True, kw_only=True)
class LocalTraining:
    """Trains for a number of steps or epochs of shuffled mini-batches of a client's tensors.

    Randomness comes from torch's global generator, which an engine seeds for each client and
    round.  Clipping acts on the raw gradient, before the algorithm corrects it.  The optimizer
    gets a closure: an algorithm may take a second gradient of the same batch.
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
        _check_counts(self, "steps", "epochs", "batch_size")
        require(
            callable(self.loss) or isinstance(self.loss, Objective),
            f"loss is {self.loss!r:.100}; it must be a function of outputs and labels, such as"
            " torch.nn.functional.mse_loss, or a fedlada.Objective",
        )

    def __call__(self, model: nn.Module, data: object, optimizer: Optimizer) -> dict[str, float]:
        """Train ``model`` in place and return the mean loss of the batches.

        ``data`` is ``(inputs, labels)``, an object with both, or a map-style dataset.
        """
        model.train()
        source = source_of(data)
        total, count = torch.zeros(()), 0
        with explained() as current:
            for chosen in self.batches(len(source)):
                batch, losses = self._batch(model, source, chosen, current), list[Tensor]()
                closure = partial(self._gradient, model, optimizer, batch, current, losses)
                optimizer.step(closure)  # type: ignore[arg-type]
                total += losses[0]
                count += 1
        return {"loss": float(total) / count}

    def _batch(
        self, model: nn.Module, source: Source, chosen: Tensor, current: list[Batch]
    ) -> tuple[Tensor, Tensor]:
        """Return a batch, and leave it for the explanation of an error."""
        inputs, labels = source.batch(chosen)
        current[:] = [Batch(model, inputs, labels)]
        if self.prepare is not None:
            inputs = self.prepare(inputs, torch.default_generator)
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
        outputs = model(inputs)
        current[:] = [Batch(model, inputs, labels, outputs)]
        loss = self.loss_for(labels)(outputs, labels)
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

    data: object
    """``(inputs, labels)``, an object with both, or a map-style dataset."""
    prepare: Callable[[Tensor], Tensor] | None = None
    batch_size: int = 1000
    objective: Objective | None = None
    split: str = "test"
    """The prefix of the metrics' names, as in ``test_accuracy``."""

    def __post_init__(self) -> None:
        require(
            self.objective is None or isinstance(self.objective, Objective),
            f"objective is {self.objective!r:.100}; it must be a fedlada.Objective, such as"
            " fedlada.REGRESSION, or left out",
        )
        _check_counts(self, "batch_size")

    @torch.no_grad()
    def __call__(self, model: nn.Module) -> dict[str, float]:
        """Return the metrics of ``model``; each is exact over all examples."""
        source = source_of(self.data)
        require(len(source) > 0, "there are no examples to evaluate on; give some")
        model.eval()
        objective, totals = self.objective, dict[str, list[Tensor]]()
        with explained() as current:
            for start in range(0, len(source), self.batch_size):
                inputs, labels = source.batch(slice(start, start + self.batch_size))
                labels = whole_labels(labels)
                current[:] = [Batch(model, inputs, labels)]
                inputs = fitted(self.prepare(inputs) if self.prepare else inputs, model)
                outputs = model(inputs)
                current[:] = [Batch(model, inputs, labels, outputs)]
                objective = objective or objective_of(labels)
                _add(totals, objective, outputs, labels)
        assert objective is not None
        return {
            f"{self.split}_{name}": metric.value(*totals[name])
            for name, metric in objective.metrics.items()
        }

    @property
    def score(self) -> str:
        """The name of the metric by which models are compared, such as ``test_accuracy``."""
        objective = self.objective or objective_of(source_of(self.data).batch(slice(0, 1))[1])
        return f"{self.split}_{objective.score}"


def _add(
    totals: dict[str, list[Tensor]], objective: Objective, outputs: Tensor, labels: Tensor
) -> None:
    """Add the sums of a batch to the totals of every metric."""
    for name, metric in objective.metrics.items():
        sums = [part.double() for part in metric.sums(outputs, labels)]
        known = totals.get(name)
        totals[name] = (
            [total + part for total, part in zip(known, sums, strict=True)] if known else sums
        )


def _check_counts(owner: object, *names: str) -> None:
    for name in names:
        value = getattr(owner, name)
        require(
            value is None or (isinstance(value, int) and value > 0),
            f"{name} is {value!r}; it must be a positive whole number",
        )
