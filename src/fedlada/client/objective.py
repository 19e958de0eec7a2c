"""Objectives: a training loss, the metrics of an evaluation and the metric to compare by."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import log

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, mse_loss

from ..errors import require
from .scale import BITS, PERCENT, Scale

__all__ = [
    *("CLASSIFICATION", "OBJECTIVES", "REGRESSION", "TEXT"),
    *("Metric", "Objective", "objective_of"),
]

PADDING = -100  # the label that cross_entropy ignores


def quotient(total: Tensor, count: Tensor) -> float:
    """Return ``total / count``."""
    return float(total) / float(count)


def bits(entropy: Tensor, count: Tensor) -> float:
    """Return the mean of an entropy in bits; torch's losses are in units of 1/ln 2 bits."""
    return quotient(entropy, count) / log(2)


@dataclass(frozen=True)
class Metric:
    """A metric that is exact over a whole data set, computed from sums over its batches.

    Args:
        sums: maps the outputs and labels of a batch to tensors, which are added up over batches
            in double precision.
        value: maps these totals to the number; by default it divides the first by the second.
        title: its name in tables and figures; by default its name in the objective.
        scale: its unit and direction, if it is the score; by default a share that rises to 1.
    """

    sums: Callable[[Tensor, Tensor], tuple[Tensor, ...]]
    value: Callable[..., float] = quotient
    title: str = ""
    scale: Scale = PERCENT

    def __post_init__(self) -> None:
        require(
            callable(self.sums) and callable(self.value),
            f"a metric has sums {self.sums!r:.100} and value {self.value!r:.100}; both must be"
            " functions: sums(outputs, labels) returns tensors, value(*totals) a number",
        )


@dataclass(frozen=True, kw_only=True)
class Objective:
    """A training loss, the metrics of an evaluation, and the metric that reports compare.

    Args:
        name: the objective's name.
        loss: maps the outputs and labels of a batch to the mean loss, which training minimises.
        metrics: the metrics of an evaluation, by name.
        score: the name of the metric by which models are compared. It must be higher for a
            better model and 1 for a perfect one, since tables show it in percent, unless the
            metric has another scale.
    """

    name: str
    loss: Callable[[Tensor, Tensor], Tensor]
    metrics: Mapping[str, Metric]
    score: str

    def __post_init__(self) -> None:
        require(
            self.score in self.metrics,
            f"score is {self.score!r}, which is none of the metrics"
            f" {', '.join(self.metrics) or '(there are none)'}; name one of them",
        )

    @property
    def title(self) -> str:
        """The name of the score in tables and figures."""
        return self.title_of(self.score)

    @property
    def scale(self) -> Scale:
        """The unit and direction of the score."""
        return self.metrics[self.score].scale

    def title_of(self, metric: str) -> str:
        """Return the name of a metric in tables and figures."""
        return self.metrics[metric].title or metric


def objective_of(labels: Tensor) -> Objective:
    """Return the regression for floating-point labels and the classification for others."""
    return REGRESSION if labels.is_floating_point() else CLASSIFICATION


def entropy_sums(outputs: Tensor, labels: Tensor) -> tuple[Tensor, ...]:
    """Return the sum of the cross-entropy of a batch and the number of labels."""
    require(
        outputs.dim() > 1 and outputs.shape[1] > 1,
        f"outputs have shape {tuple(outputs.shape)}, one number per example; a classification"
        " needs one per class, and a regression needs floating-point labels",
    )
    return cross_entropy(outputs, labels, reduction="sum"), _count(labels)


def correct_sums(outputs: Tensor, labels: Tensor) -> tuple[Tensor, ...]:
    """Return the number of labels whose class has the largest output and of all labels."""
    classes = labels.argmax(1) if labels.is_floating_point() else labels
    return (outputs.argmax(1) == classes).sum(), _count(labels)


def mean_squared_error(outputs: Tensor, labels: Tensor) -> Tensor:
    """Return the mean squared error of a batch over all numbers in its labels."""
    return mse_loss(*_paired(outputs, labels))


def squared_sums(outputs: Tensor, labels: Tensor) -> tuple[Tensor, ...]:
    """Return the sum of squared errors of a batch and how many numbers its labels have."""
    predicted, wanted = _paired(outputs, labels)
    return (predicted - wanted).double().square().sum(), torch.tensor(labels.numel())


def r2_sums(outputs: Tensor, labels: Tensor) -> tuple[Tensor, ...]:
    """Return the sums of squared errors, labels and squared labels, and the number of examples."""
    error, _ = squared_sums(outputs, labels)
    wanted = labels.double()
    return error, wanted.sum(0), wanted.square().sum(0), torch.tensor(len(labels))


def r2(error: Tensor, total: Tensor, squares: Tensor, count: Tensor) -> float:
    """Return the share of the labels' variance that the outputs explain; NaN if it is 0."""
    variance = float((squares - total.square() / count).sum())
    return 1 - float(error) / variance if variance > 0 else float("nan")


CLASSIFICATION = Objective(
    name="classification",
    loss=cross_entropy,
    metrics={"loss": Metric(entropy_sums), "accuracy": Metric(correct_sums)},
    score="accuracy",
)
REGRESSION = Objective(
    name="regression",
    loss=mean_squared_error,
    metrics={
        "mse": Metric(squared_sums, title="mean squared error"),
        "r2": Metric(r2_sums, r2, title="R²"),
    },
    score="r2",
)
TEXT = Objective(
    name="text",
    loss=cross_entropy,
    metrics={"bits": Metric(entropy_sums, bits, title="bits per byte", scale=BITS)},
    score="bits",
)
OBJECTIVES = {"classification": CLASSIFICATION, "regression": REGRESSION, "text": TEXT}


def _count(labels: Tensor) -> Tensor:
    if labels.is_floating_point():  # a label is a probability per class
        return torch.tensor(len(labels))
    return (labels != PADDING).sum()


def _paired(outputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return both in the labels' shape: [N, 1] and [N] would be broadcast to [N, N]."""
    require(
        outputs.numel() == labels.numel(),
        f"outputs have shape {tuple(outputs.shape)} and labels {tuple(labels.shape)}; a regression"
        " needs one output for every number in a label",
    )
    return outputs.reshape(labels.shape), labels.to(outputs.dtype)
