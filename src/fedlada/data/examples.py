"""A labelled set of examples of any kind, in memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import TypeVar

import torch
from torch import Tensor

from ..errors import require
from ..training.examples import as_tensor
from .augment import Statistics

__all__ = ["Examples", "check_owners", "is_missing", "listed"]

E = TypeVar("E", bound="Examples")


@dataclass(frozen=True, eq=False, repr=False)
class Examples:
    """Inputs with their labels and, optionally, their owners.

    Arrays become tensors that share their memory.

    Args:
        inputs: [N, ...], of any type.
        labels: [N, ...]; int64 for classes numbered from 0, floating point for numbers to predict.
        classes: the names of the classes; by default their numbers.
        owners: the owner of each example, as N whole numbers or N words.
        prepare: turns a batch of inputs into the model's input, in training and in evaluation;
            by default inputs are unchanged.
        columns: the names of the columns of the inputs, for messages.
    """

    inputs: Tensor
    labels: Tensor
    classes: tuple[str, ...] = ()
    owners: Sequence[int | str] | Tensor | None = None
    prepare: Callable[[Tensor], Tensor] | None = None
    columns: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Check shapes and types."""
        for name in ("inputs", "labels"):
            object.__setattr__(self, name, as_tensor(getattr(self, name), name))
        require(
            len(self.inputs) == len(self.labels),
            f"There are {len(self.inputs)} inputs and {len(self.labels)} labels; "
            "give every input exactly one label.",
        )
        require(
            self.labels.dtype == torch.int64 or self.labels.is_floating_point(),
            f"labels are {self.labels.dtype}; convert them with labels.long() where they name"
            " classes, with labels.float() where they are numbers to predict.",
        )
        if self.labels.is_floating_point():
            require(
                not self.classes,
                f"labels are {self.labels.dtype}, so they name no classes, but classes are"
                f" {self.classes}; leave classes out, or convert labels with labels.long().",
            )
        elif not self.classes and self.labels.numel():
            names = tuple(map(str, range(int(self.labels.max()) + 1)))
            object.__setattr__(self, "classes", names)
        if self.owners is not None:
            object.__setattr__(self, "owners", _owners(self.owners, len(self.labels)))

    def __len__(self) -> int:
        """Return the number of examples."""
        return len(self.labels)

    def __repr__(self) -> str:
        parts = [f"{len(self)} examples of shape {list(self.shape)}"]
        parts += [f"columns {listed(self.columns)}"] if self.columns else []
        parts += [f"classes {listed(self.classes)}" if self.classes else "numbers to predict"]
        if self.owners is not None:
            parts += [f"{len(set(self.owners))} owners"]
        return f"{type(self).__name__}({'; '.join(parts)})"

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one input."""
        return tuple(self.inputs.shape[1:])

    @property
    def outputs(self) -> int:
        """The number of outputs a model needs: one per class, or one per number in a label."""
        return len(self.classes) or prod(self.labels.shape[1:])

    def rows(self: E, rows: Tensor) -> E:
        """Return the examples with these row numbers."""
        kept = None if self.owners is None else tuple(self.owners)
        owners = None if kept is None else [kept[row] for row in rows.tolist()]
        return replace(self, inputs=self.inputs[rows], labels=self.labels[rows], owners=owners)


def listed(words: Sequence[str]) -> str:
    """Return words as text, the first few of many."""
    return ", ".join([*words[:5], *(["..."] if len(words) > 5 else [])])


def is_missing(cell: object) -> bool:
    """Tell whether a cell of a table has no value: None, NaN, NaT, pandas' NA or an empty word."""
    try:
        return cell is None or bool(cell == "") or bool(cell != cell)
    except (TypeError, ValueError, RuntimeError):  # NA is neither true nor false; an array is both
        return not hasattr(cell, "shape")


def _owners(values: Sequence[int | str] | Tensor, count: int) -> tuple[int | str, ...]:
    owners = tuple(values.tolist() if hasattr(values, "tolist") else values)
    require(
        len(owners) == count,
        f"There are {count} examples and {len(owners)} owners; give every example one owner.",
    )
    check_owners(owners)
    return owners


def check_owners(owners: Sequence[object]) -> None:
    """Check that every row has an owner, and that all are numbers or all are words."""
    unknown = [row for row, owner in enumerate(owners) if is_missing(owner)]
    require(
        not unknown,
        f"row {unknown[0] if unknown else 0} has no owner, and neither have"
        f" {len(unknown) - 1} other rows; leave such rows out, or name their owner",
    )
    kinds = {type(owner) for owner in owners}
    require(
        kinds <= {int} or kinds <= {str},
        f"owners are of type {' and '.join(sorted(kind.__name__ for kind in kinds))}; give whole"
        " numbers or words, and only one of the two.",
    )


@dataclass(frozen=True, eq=False, repr=False)
class Images(Examples):
    """Images as bytes, with their labels.

    Args:
        inputs: uint8, [N, C, H, W].
        labels: int64, [N], each an index into ``classes``.
        classes: the names of the classes.
        owners: the owner of each image, as N whole numbers or N words.
        prepare: must be None, because experiments normalise and augment images with ``Augment``.
        statistics: the mean and standard deviation of each channel; experiments require them.
    """

    statistics: Statistics | None = None

    def __post_init__(self) -> None:
        """Check shapes and types."""
        require(
            self.inputs.dim() == 4 and self.inputs.dtype == torch.uint8,
            f"inputs are {self.inputs.dtype} of shape {tuple(self.inputs.shape)}; "
            "Images holds torch.uint8 of shape [N, C, H, W]. "
            "Convert them, and leave scaling to Augment.",
        )
        require(
            self.labels.dim() == 1 and self.labels.dtype == torch.int64,
            f"labels are {self.labels.dtype} of shape {tuple(self.labels.shape)}; "
            "Images holds torch.int64 of shape [N]. Convert them with labels.long().flatten(), "
            "or use Examples for other labels.",
        )
        super().__post_init__()
        require(
            not len(self.labels)
            or bool(0 <= self.labels.min() <= self.labels.max() < len(self.classes)),
            f"labels run from {self.labels.min() if len(self.labels) else 0} to"
            f" {self.labels.max() if len(self.labels) else 0}, but there are "
            f"{len(self.classes)} classes; number the labels from 0 to {len(self.classes) - 1}.",
        )
        require(
            self.prepare is None,
            "Images take statistics and no prepare: use Examples for inputs that are prepared"
            " in another way.",
        )
