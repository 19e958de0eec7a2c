"""Ready-made evaluations of a model on labelled examples: a client's, and the server's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..devices import device_of, moved, wide
from ..errors import FedladaError, check_counts, require
from .diagnosis import Batch, check_numbers, explained, fitted, whole_labels
from .examples import read
from .objective import Objective, objective_of

__all__ = ["Evaluation", "LocalEvaluation", "as_trained"]


@dataclass(frozen=True, kw_only=True)
class LocalEvaluation:
    """Computes the metrics of a model on a client's labelled examples, as LocalTraining trains.

    Without an ``objective`` the labels decide: classes are evaluated by loss and accuracy
    (between 0 and 1), and floating-point labels by mean squared error and coefficient of
    determination.
    """

    prepare: Callable[[Tensor], Tensor] | None = None
    """Converts a batch of inputs to the model's input."""
    batch_size: int = 1000
    """Number of examples at a time; it does not change the metrics."""
    objective: Objective | None = None
    """Says which metrics; by default the labels decide."""

    def __post_init__(self) -> None:
        require(
            self.objective is None or isinstance(self.objective, Objective),
            f"objective is {self.objective!r:.100}; it must be a"
            " fedlada.training.Objective, such as fedlada.training.REGRESSION, or left out",
        )
        check_counts(self, "batch_size")

    @torch.no_grad()
    def __call__(self, model: nn.Module, data: object) -> dict[str, float]:
        """Return the metrics of ``model``; each is exact over all examples.

        ``data`` is ``(inputs, labels)``, an object with both, a map-style dataset, or a DataLoader.
        """
        device = device_of(model)
        model.eval()
        objective, totals = self.objective, dict[str, list[Tensor]]()
        with explained() as current:
            for batch in read(data, self.batch_size):
                inputs, labels = (moved(part, device) for part in batch)
                labels = whole_labels(labels)
                current[:] = [Batch(model, inputs, labels)]
                inputs = fitted(self.prepare(inputs) if self.prepare else inputs, model)
                outputs = model(inputs)
                current[:] = [Batch(model, inputs, labels, outputs)]
                objective = objective or objective_of(labels)
                _add(totals, objective, outputs, labels)
        if objective is None or not totals:
            raise FedladaError("there are no examples to evaluate on; give some")
        if not all(bool(part.isfinite().all()) for parts in totals.values() for part in parts):
            check_numbers(data, objective, prepare=self.prepare, device=device)
        return {
            name: metric.value(*(total.cpu() for total in totals[name]))
            for name, metric in objective.metrics.items()
        }


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """Computes the metrics of the server's model on labelled examples.

    They are those of :class:`LocalEvaluation`, with a prefix.
    """

    data: object
    """``(inputs, labels)``, an object with both, a map-style dataset, or a DataLoader."""
    prepare: Callable[[Tensor], Tensor] | None = None
    """Converts a batch of inputs to the model's input."""
    batch_size: int = 1000
    """Number of examples at a time; it does not change the metrics."""
    objective: Objective | None = None
    """Says which metrics; by default the labels decide."""
    split: str = "test"
    """The prefix of the metrics' names, as in ``test_accuracy``."""

    def __post_init__(self) -> None:
        self._local()

    def __call__(self, model: nn.Module) -> dict[str, float]:
        """Return the metrics of ``model``; each is exact over all examples."""
        metrics = self._local()(model, self.data)
        return {f"{self.split}_{name}": value for name, value in metrics.items()}

    def _local(self) -> LocalEvaluation:
        return LocalEvaluation(
            prepare=self.prepare, batch_size=self.batch_size, objective=self.objective
        )

    @property
    def score(self) -> str:
        """The name of the metric by which models are compared, such as ``test_accuracy``."""
        objective = self.objective
        if objective is None:
            with torch.random.fork_rng(devices=()):  # a DataLoader draws numbers when it begins
                objective = objective_of(next(read(self.data, 1))[1])
        return f"{self.split}_{objective.score}"


def _add(
    totals: dict[str, list[Tensor]], objective: Objective, outputs: Tensor, labels: Tensor
) -> None:
    """Add the sums of a batch to the totals of every metric."""
    for name, metric in objective.metrics.items():
        sums = [wide(part) for part in metric.sums(outputs, labels)]
        known = totals.get(name)
        totals[name] = (
            [total + part for total, part in zip(known, sums, strict=True)] if known else sums
        )


def as_trained(train: object) -> LocalEvaluation:
    """Return an evaluation that prepares inputs and judges outputs as a training does.

    Of a preparation that also augments, it takes the ``plain`` part.
    """
    prepare, loss = getattr(train, "prepare", None), getattr(train, "loss", None)
    return LocalEvaluation(
        prepare=getattr(prepare, "plain", prepare),
        objective=loss if isinstance(loss, Objective) else None,
    )
