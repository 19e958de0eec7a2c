"""What is wrong with a batch that a model or a loss refused, as a sentence with what to do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ..errors import FedladaError
from .objective import PADDING

__all__ = ["Batch", "explained", "fitted", "whole_labels"]


@dataclass
class Batch:
    """What is known of a batch when something about it fails."""

    model: nn.Module
    inputs: Tensor | None = None
    labels: Tensor | None = None
    outputs: Tensor | None = None


@contextmanager
def explained() -> Iterator[list[Batch]]:
    """Explain an error inside the block by the batch that the block has put into the list.

    Nothing is looked at unless there is an error, so this costs nothing in a loop over batches.
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


def fitted(t: Tensor, model: nn.Module) -> Tensor:
    """Return float64 numbers in the type of a model that has none: numpy makes float64."""
    if t.dtype != torch.float64:
        return t
    kinds = [p.dtype for p in model.parameters() if p.is_floating_point()]
    return t if not kinds or torch.float64 in kinds else t.to(kinds[0])


def whole_labels(labels: Tensor) -> Tensor:
    """Return classes as the int64 that torch's losses want, whatever integers they are."""
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
            return f"{about}; a loss for classes wants labels of whole numbers: give labels.long()"
        return None
    if outputs.dim() > 1 and labels.dim() == outputs.dim() and labels.shape[1] == 1:
        return f"{about}; one label per example is wanted, not a column: give labels.flatten()"
    if outputs.dim() < 2 or outputs.shape[1] == 1:
        return (
            f"{about}; a model of classes has one output for each class: give it more outputs, or"
            " labels.float() if they are numbers to predict"
        )
    classes = outputs.shape[1]
    known = labels[labels != PADDING]
    wrong = known[(known < 0) | (known >= classes)]
    if len(wrong):
        return (
            f"a label is {int(wrong[0])}, and the model has {classes} outputs; number the classes"
            f" from 0 to {classes - 1}, give the model more outputs, or give labels.float() if"
            " they are numbers to predict"
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
            " prepare=lambda x, generator: x.float() / 255 in LocalTraining,"
            " prepare=lambda x: x.float() / 255 in Evaluation"
        )
    if inputs.is_floating_point() and kinds and inputs.dtype not in kinds:
        return f"{about}, and the model is {_names(kinds)}; give both the same type"
    first = next((m for m in model.modules() if isinstance(m, nn.Linear)), None)
    if first is not None and inputs.shape[-1] != first.in_features:
        return (
            f"{about}, and {first} wants rows of {first.in_features}; change the layer, or reshape"
            " the inputs, such as with nn.Flatten() before it"
        )
    return None


def _looks_up(model: nn.Module) -> bool:
    return any(isinstance(m, nn.Embedding | nn.EmbeddingBag) for m in model.modules())


def _about(t: Tensor) -> str:
    return f"{t.dtype} of shape {list(t.shape)}"


def _names(kinds: set[torch.dtype]) -> str:
    return " and ".join(sorted(map(str, kinds)))
