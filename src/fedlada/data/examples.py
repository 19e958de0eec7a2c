"""A labelled set of examples of any kind, in memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import TypeVar

import torch
from torch import Tensor

from ..client.labelled import as_tensor
from ..errors import require

__all__ = ["Examples"]

E = TypeVar("E", bound="Examples")


@dataclass(frozen=True, eq=False)
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
    """

    inputs: Tensor = field(repr=False)
    labels: Tensor = field(repr=False)
    classes: tuple[str, ...] = ()
    owners: Sequence[int | str] | Tensor | None = field(default=None, repr=False)
    prepare: Callable[[Tensor], Tensor] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        """Check shapes and types here, so that other code need not."""
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


def _owners(given: Sequence[int | str] | Tensor, count: int) -> tuple[int | str, ...]:
    owners = tuple(given.tolist() if hasattr(given, "tolist") else given)
    require(
        len(owners) == count,
        f"There are {count} examples and {len(owners)} owners; give every example one owner.",
    )
    kinds = {type(owner) for owner in owners}
    require(
        kinds <= {int} or kinds <= {str},
        f"owners are of type {' and '.join(sorted(kind.__name__ for kind in kinds))}; give whole"
        " numbers or words, and only one of the two.",
    )
    return owners
