"""Objectives: a training loss, the metrics of an evaluation and the metric to compare by.

A metric's scale says how it is shown, and whether more of it is better.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import log

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, mse_loss

from ..devices import wide
from ..errors import require

__all__ = [
    *("BINARY", "CLASSIFICATION", "OBJECTIVES", "REGRESSION", "TEXT"),
    *("Metric", "Objective", "Scale", "objective_of"),
]

PADDING = -100  # the label that cross_entropy ignores


@dataclass(frozen=True, kw_only=True)
class Scale:
    """The direction and the unit of a score; the default is a share that is shown in percent.

    Args:
        higher: whether a higher score is better.
        unit: the unit in which the score is shown.
        factor: what a recorded score is multiplied by to get that unit.
        difference: the word for the unit of a difference of two scores.
        most: the largest possible score; None if there is no such number.
        digits: the number of digits after the point in tables.
    """

    higher: bool = True
    unit: str = "%"
    factor: float = 100.0
    difference: str = "points"
    most: float | None = 1.0
    digits: int = 2

    @property
    def sign(self) -> int:
        """1 if a higher score is better, else -1: the best score is the largest times this."""
        return 1 if self.higher else -1

    def best(self, scores: Sequence[float]) -> float:
        """Return the best of some scores."""
        return max(scores) if self.higher else min(scores)

    def text(self, score: float) -> str:
        """Return a score in its unit, such as ``80 %`` or ``2.5 bits``."""
        return f"{self.factor * score:.4g} {self.unit}"

    def brief(self, score: float) -> str:
        """Return a score for a line of progress, such as ``51.2%`` or ``2.512``."""
        return f"{score:.1%}" if self.unit == "%" else f"{self.factor * score:.3f}"

    def number(self, score: float) -> str:
        """Return a score with all its digits and without its unit, for a column of a table."""
        return f"{self.factor * score:.{self.digits}f}"

    def heading(self, title: str) -> str:
        """Return what follows a title that contains the score's name: ``, %`` or nothing."""
        return "" if self.unit in title else f", {self.unit}"

    def check_target(self, target: float, key: str) -> None:
        """Raise an error if no score can reach a target, which ``key`` has given."""
        if self.most is None:
            require(target > 0, f"{key} is {target:g}; it must be a score above 0")
            return
        share = target / self.factor
        instead = f", as {share:g} for {target:g} {self.unit}" if target > self.most else ""
        require(
            0 < target <= self.most,
            f"{key} is {target:g}; it must be a score above 0 and at most {self.most:g}"
            + (instead if 0 < share <= self.most else ""),
        )


PERCENT = Scale()
BITS = Scale(higher=False, unit="bits", factor=1.0, difference="bits", most=None, digits=3)


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


def check_default(labels: Tensor) -> None:
    """Warn if labels that look like outcomes are numbers to predict, because nobody said more."""
    column = labels.is_floating_point() and labels.numel() == len(labels) > 1
    if column and set(labels.flatten().tolist()) == {0, 1}:
        warnings.warn(
            "labels are 0 and 1 as floating-point numbers, so they are numbers to predict, with the"
            " mean squared error and R²; for an outcome give loss=fedlada.training.BINARY to"
            " LocalTraining and objective=fedlada.training.BINARY to Evaluation",
            stacklevel=2,
        )


def entropy_sums(outputs: Tensor, labels: Tensor) -> tuple[Tensor, ...]:
    """Return the sum of the cross-entropy of a batch and the number of labels."""
    require(
        outputs.dim() > 1 and outputs.shape[1] > 1,
        f"outputs have shape {tuple(outputs.shape)}, one number per example; a classification"
        " needs one per class, and a regression needs floating-point labels. For an outcome of 0 or"
        " 1 give objective=fedlada.training.BINARY",
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
    return wide(predicted - wanted).square().sum(), torch.tensor(labels.numel())


def r2_sums(outputs: Tensor, labels: Tensor) -> tuple[Tensor, ...]:
    """Return the sums of squared errors, labels and squared labels, and the number of examples."""
    error, _ = squared_sums(outputs, labels)
    wanted = wide(labels)
    return error, wanted.sum(0), wanted.square().sum(0), torch.tensor(len(labels))


def r2(error: Tensor, total: Tensor, squares: Tensor, count: Tensor) -> float:
    """Return the share of the labels' variance that the outputs explain; NaN if it is 0."""
    variance = float((squares - total.square() / count).sum())
    return 1 - float(error) / variance if variance > 0 else float("nan")


def binary_loss(outputs: Tensor, labels: Tensor) -> Tensor:
    """Return the mean binary cross-entropy of a batch; outputs are logits."""
    return binary_cross_entropy_with_logits(*_outcomes(outputs, labels))


def binary_sums(outputs: Tensor, labels: Tensor) -> tuple[Tensor, ...]:
    """Return the sum of the binary cross-entropy of a batch and the number of labels."""
    logits, outcomes = _outcomes(outputs, labels)
    entropy = binary_cross_entropy_with_logits(logits, outcomes, reduction="sum")
    return entropy, torch.tensor(labels.numel())


def binary_correct_sums(outputs: Tensor, labels: Tensor) -> tuple[Tensor, ...]:
    """Return the number of labels on whose side of 1/2 the probability is, and of all labels."""
    logits, outcomes = _outcomes(outputs, labels)
    return ((logits > 0) == (outcomes > 0)).sum(), torch.tensor(labels.numel())


BINS = 1024
"""The number of bins of :func:`auc_sums`."""


def auc_sums(outputs: Tensor, labels: Tensor) -> tuple[Tensor, ...]:
    """Return how many labels 0, and how many labels 1, have their logit in each bin.

    The bins are equally wide in asinh(logit): 1/64 near 0, 1/8 at 8 and -8.  They are the same for
    every batch and every client, so these counts may be added over a federation, and the ROC curve
    of all its scores follows without anybody seeing a score.
    """
    logits, outcomes = _outcomes(outputs, labels)
    places = (logits.double().cpu().asinh() * 64 + BINS // 2).nan_to_num(0.0)
    bins = places.clamp(0, BINS - 1).long().flatten()
    positive = outcomes.cpu().flatten() > 0
    return tuple(torch.bincount(bins[chosen], minlength=BINS) for chosen in (~positive, positive))


def auc(negative: Tensor, positive: Tensor) -> float:
    """Return the area under the ROC curve by counts of :func:`auc_sums`; NaN with one class only.

    It is the share of pairs of a 1 and a 0 in which the 1 has the higher logit.  A pair in one bin
    counts one half, so the error is at most that of :func:`auc_error`.
    """
    negative, positive = negative.double(), positive.double()
    pairs = float(negative.sum() * positive.sum())
    below = negative.cumsum(0) - negative / 2
    return float((positive * below).sum()) / pairs if pairs else float("nan")


def auc_error(negative: Tensor, positive: Tensor) -> float:
    """Return the largest difference between :func:`auc` and the area by the scores themselves."""
    negative, positive = negative.double(), positive.double()
    pairs = float(negative.sum() * positive.sum())
    return float((positive * negative).sum()) / pairs / 2 if pairs else float("nan")


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
BINARY = Objective(
    name="binary",
    loss=binary_loss,
    metrics={
        "loss": Metric(binary_sums),
        "accuracy": Metric(binary_correct_sums),
        "auc": Metric(auc_sums, auc, title="AUC"),
        "auc_error": Metric(auc_sums, auc_error, title="largest error of the AUC"),
    },
    score="auc",
)
OBJECTIVES = {each.name: each for each in (BINARY, CLASSIFICATION, REGRESSION, TEXT)}


def _count(labels: Tensor) -> Tensor:
    if labels.is_floating_point():  # a label is a probability per class
        return torch.tensor(len(labels))
    return (labels != PADDING).sum()


def _outcomes(outputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return logits and outcomes in the labels' shape, both as floating-point numbers."""
    require(
        outputs.numel() == labels.numel(),
        f"outputs have shape {tuple(outputs.shape)} and labels {tuple(labels.shape)}; an outcome of"
        " 0 or 1 needs one output, a logit: make the last layer nn.Linear(..., 1), without a"
        " sigmoid",
    )
    known = (labels == 0) | (labels == 1)
    outcomes = labels.to(outputs.dtype).masked_fill(~known, float("nan"))  # no loss, no learning
    return outputs.reshape(labels.shape), outcomes


def _paired(outputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return both in the labels' shape: [N, 1] and [N] would be broadcast to [N, N]."""
    require(
        outputs.numel() == labels.numel(),
        f"outputs have shape {tuple(outputs.shape)} and labels {tuple(labels.shape)}; a regression"
        " needs one output for every number in a label",
    )
    return outputs.reshape(labels.shape), labels.to(outputs.dtype)
