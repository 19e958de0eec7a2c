"""Explains why a model or a loss refused a batch, and what to do."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ..devices import CPU, moved
from ..errors import FedladaError, warn_here
from .examples import read
from .objective import BINARY, PADDING

__all__ = ["Batch", "check_numbers", "explained", "fitted", "whole_labels"]

LARGE = 10.0
"""A column of inputs whose root mean square is above this is named as a cause of divergence."""
READ = 1000
"""Examples that are read at a time."""


@dataclass
class Batch:
    """A batch, and the model that it was for."""

    model: nn.Module
    inputs: Tensor | None = None
    labels: Tensor | None = None
    outputs: Tensor | None = None


@contextmanager
def explained() -> Iterator[list[Batch]]:
    """Explain an error inside the block by the batch that the block has put into the list.

    The batch is examined only after an error, so a loop over batches loses no time.
    """
    current: list[Batch] = []
    try:
        yield current
    except FedladaError:
        raise
    except (RuntimeError, ValueError, IndexError, TypeError) as error:
        sentence = _sentence(current[-1]) if current else None
        if sentence is None:
            raise
        raise FedladaError(sentence) from error


def check_numbers(
    data: object,
    objective: object = None,
    *,
    prepare: Callable[[Tensor], Tensor] | None = None,
    device: torch.device = CPU,
    scale: bool = False,
) -> None:
    """Raise an error if examples have values with which nothing can be computed.

    It is called when a loss is not finite, so healthy data are never read twice.  It looks at
    inputs as the model gets them, prepared on its ``device``.  With ``scale`` it warns of a column
    that is large enough to make training diverge.
    """
    prepare = getattr(prepare, "plain", prepare)
    broken, where, squares, start = 0, "", list[Tensor](), 0
    columns = getattr(data, "columns", ())
    for raw, labels in read(data, READ):
        inputs = raw if prepare is None else prepare(moved(raw, device))
        columns = columns if inputs.shape == raw.shape else ()
        for what, t in (("inputs", inputs), ("labels", labels)):
            wrong = ~torch.isfinite(t)
            if what == "labels" and objective is BINARY:
                wrong |= (t != 0) & (t != 1)
            if wrong.any():
                broken += int(wrong.reshape(len(t), -1).any(1).sum())
                where = where or _first(what, t, wrong, start, columns)
        start += len(labels)
        if inputs.dim() == 2 and inputs.is_floating_point():
            squares.append(inputs.cpu().double().square().sum(0))
    if broken:
        of_outcome = objective is BINARY and where.startswith("labels")
        others = f", and {broken - 1} other rows have such values" if broken > 1 else ""
        raise FedladaError(
            f"{where}{others}{'; an outcome is 0 or 1' if of_outcome else ''}. Correct them or"
            " leave these rows out; fedlada.data.from_table(table, ..., missing='drop') leaves out"
            " rows without a value, and prepare=fedlada.data.standardise(clients, missing='mean')"
            " gives missing inputs the mean"
        )
    if scale and squares:
        root = (torch.stack(squares).sum(0) / start).sqrt()
        worst = int(root.argmax())
        if root[worst] > LARGE:
            warn_here(
                f"training diverged, and {_column(columns, worst)} of the inputs has values of"
                f" about {float(root[worst]):.2g}; standardise the inputs:"
                " prepare=fedlada.data.standardise(clients) in LocalTraining and in Evaluation"
            )


def _first(what: str, t: Tensor, wrong: Tensor, start: int, columns: Sequence[str]) -> str:
    """Return the first of the wrong values and where it is."""
    row, *place = wrong.nonzero()[0].tolist()
    value = f"{t[(row, *place)].item():g}"
    if what == "inputs" and len(place) == 1:
        return f"{what} have {value} in row {start + row}, {_column(columns, place[0])}"
    return f"{what} have {value} in row {start + row}" + (f" at {place}" if place else "")


def _column(names: Sequence[str], number: int) -> str:
    return f"column {number}" + (f" ({names[number]})" if number < len(names) else "")


def fitted(t: Tensor, model: nn.Module) -> Tensor:
    """Return float64 numbers in the type of a model that has none: numpy makes float64."""
    if t.dtype != torch.float64:
        return t
    kinds = [p.dtype for p in model.parameters() if p.is_floating_point()]
    return t if not kinds or torch.float64 in kinds else t.to(kinds[0])


def whole_labels(labels: Tensor) -> Tensor:
    """Return integer labels as int64, which torch's losses need."""
    return labels if labels.is_floating_point() or labels.is_complex() else labels.long()


def _sentence(batch: Batch) -> str | None:
    """Return what is wrong with a batch, as far as it can be seen."""
    inputs, labels, outputs, model = batch.inputs, batch.labels, batch.outputs, batch.model
    if inputs is None or labels is None:
        return None
    about = f"inputs are {_about(inputs)} and labels {_about(labels)}"
    if outputs is None:
        return _refused_by_model(inputs, model, about)
    about += f", and the model's outputs {_about(outputs)}"
    if labels.is_floating_point():
        if labels.dim() == 1 and outputs.dim() == 2 and outputs.shape[1] > 1:
            return f"{about}; a loss for classes needs integer labels: give labels.long()"
        return None
    if outputs.dim() > 1 and labels.dim() == outputs.dim() and labels.shape[1] == 1:
        return f"{about}; labels must have one dimension, not a column: give labels.flatten()"
    if outputs.dim() < 2 or outputs.shape[1] == 1:
        return (
            f"{about}; a model of classes has one output for each class: give it more outputs. For"
            " an outcome of 0 or 1 give loss=fedlada.training.BINARY to LocalTraining and"
            " objective=fedlada.training.BINARY to Evaluation; for numbers to predict give"
            " labels.float()"
        )
    classes = outputs.shape[1]
    known = labels[labels != PADDING]
    wrong = known[(known < 0) | (known >= classes)]
    if len(wrong):
        return (
            f"a label is {int(wrong[0])}, and the model has {classes} outputs; number the classes"
            f" from 0 to {classes - 1}, or give the model more outputs; for numbers to predict give"
            " labels.float() and the model one output"
        )
    return None


def _refused_by_model(inputs: Tensor, model: nn.Module, about: str) -> str | None:
    """Return why a model refuses inputs: their type, their shape, or a batch of one."""
    kinds = {p.dtype for p in model.parameters() if p.is_floating_point()}
    norms = any(isinstance(m, _BatchNorm) for m in model.modules())
    if len(inputs) == 1 and norms and model.training:
        return (
            "a batch has 1 example, and BatchNorm needs 2 or more to train; choose a batch_size"
            " that leaves no batch of one, or leave that example out"
        )
    if not inputs.is_floating_point() and kinds and not _looks_up(model):
        return (
            f"{about}, and the model is {_names(kinds)}; convert the inputs:"
            " prepare=lambda x: x.float() / 255 in LocalTraining and in Evaluation"
        )
    if inputs.is_floating_point() and kinds and inputs.dtype not in kinds:
        return f"{about}, and the model is {_names(kinds)}; give both the same type"
    first = next((m for m in model.modules() if isinstance(m, nn.Linear)), None)
    if first is not None and inputs.shape[-1] != first.in_features:
        return (
            f"{about}, and {first} needs rows of {first.in_features}; change the layer, or reshape"
            " the inputs, such as with nn.Flatten() before it"
        )
    return None


def _looks_up(model: nn.Module) -> bool:
    return any(isinstance(m, nn.Embedding | nn.EmbeddingBag) for m in model.modules())


def _about(t: Tensor) -> str:
    return f"{t.dtype} of shape {list(t.shape)}"


def _names(kinds: set[torch.dtype]) -> str:
    return " and ".join(sorted(map(str, kinds)))
