"""Labelled examples of any kind as tensors: the one place that turns what users have into batches.

A client's data may be ``(inputs, labels)``, an object with ``inputs`` and ``labels``, or a
map-style ``torch.utils.data.Dataset``.  Inputs and labels may be tensors, or arrays of numpy or of
a library that imitates it.  Tensors and arrays are not copied; a dataset is read batch by batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset, default_collate

from ..devices import device_of, moved
from ..errors import FedladaError, require

__all__ = [
    *("ClientData", "Labelled", "Rows", "Source", "as_tensor", "check_single", "examples_in"),
    *("loaded", "read", "source_for", "source_of"),
]

Rows = Tensor | slice
"""The row numbers of a batch."""


class Labelled(Protocol):
    """Examples with labels, as tensors with one row per example."""

    @property
    def inputs(self) -> Tensor: ...
    @property
    def labels(self) -> Tensor: ...
    def __len__(self) -> int: ...


class Source(Protocol):
    """Examples that are read batch by batch."""

    def __len__(self) -> int: ...
    def batch(self, rows: Rows) -> tuple[Tensor, Tensor]:
        """Return the inputs and labels of these rows."""
        ...


@dataclass(frozen=True, eq=False)
class ClientData:
    """The samples of one client: ``inputs[i]`` has label ``labels[i]``.

    Both are tensors, or arrays, which become tensors that share their memory.
    """

    inputs: Tensor = field(repr=False)
    """The inputs, one row for each sample."""
    labels: Tensor = field(repr=False)
    """The label of each sample."""
    columns: tuple[str, ...] = field(default=(), repr=False)
    """The names of the columns of the inputs, for messages, if they come from a table."""

    def __post_init__(self) -> None:
        """Check that there are as many labels as inputs."""
        for name in ("inputs", "labels"):
            object.__setattr__(self, name, as_tensor(getattr(self, name), name))
            if getattr(self, name).dim() == 0:  # not require(): to print a large tensor takes long
                raise FedladaError(
                    f"{name} are the single value {getattr(self, name)}; give one row per example."
                    " If one set holds the examples of all clients, split it:"
                    " fedlada.data.split(inputs, labels, clients=10)."
                )
        require(
            len(self.inputs) == len(self.labels),
            f"There are {len(self.inputs)} inputs and {len(self.labels)} labels; "
            "give every input exactly one label.",
        )

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self.labels)

    def batch(self, rows: Rows) -> tuple[Tensor, Tensor]:
        """Return the inputs and labels of these rows."""
        return self.inputs[rows], self.labels[rows]


@dataclass(frozen=True, eq=False)
class _Items:
    """A map-style dataset whose items are pairs; only the items of a batch are read."""

    items: Dataset[Any] | Sequence[Any]

    def __len__(self) -> int:
        return len(cast(Sequence[Any], self.items))

    def batch(self, rows: Rows) -> tuple[Tensor, Tensor]:
        numbers = range(len(self))[rows] if isinstance(rows, slice) else rows.tolist()
        together = getattr(self.items, "__getitems__", None)
        examples = together(list(numbers)) if together else [self.items[row] for row in numbers]
        first = examples[0]
        if isinstance(first, Mapping):
            raise FedladaError(
                f"an example of the dataset is a table of {', '.join(map(str, first))}; name the"
                " columns to learn from: fedlada.data.from_table(dataset, inputs=..., label=...)"
            )
        require(
            isinstance(first, tuple | list) and len(first) == 2,
            f"an example of the dataset is a {_kind(first)}; it must be a pair of input and label:"
            " return both, or give train=, a loop of your own",
        )
        for part, what in zip(first, ("input", "label"), strict=True):
            require(
                not isinstance(part, tuple | list | Mapping | str),
                f"the {what} of an example is a {_kind(part)}; it must be one tensor, array or"
                f" number: join or number its parts in the dataset, or give train=, a loop of your"
                " own",
            )
        return _pair(default_collate([tuple(item) for item in examples]))


@dataclass(frozen=True, eq=False)
class _Moved:
    """A source whose batches are moved to a device."""

    source: Source
    device: torch.device

    def __len__(self) -> int:
        return len(self.source)

    def batch(self, rows: Rows) -> tuple[Tensor, Tensor]:
        inputs, labels = self.source.batch(rows)
        return moved(inputs, self.device), moved(labels, self.device)


def as_tensor(value: object, what: str) -> Tensor:
    """Return a tensor as it is, an array as a tensor of the same memory, a list as a tensor."""
    if isinstance(value, Tensor):
        return value
    if not (hasattr(value, "__array__") or isinstance(value, list | tuple)):
        raise FedladaError(
            f"{what} are a {_kind(value)}; give a tensor, an array, or a list of numbers"
        )
    if hasattr(value, "to_numpy"):  # a column or a table of pandas or polars
        value = value.to_numpy()
    if getattr(getattr(value, "flags", None), "writeable", True) is False:
        value = value.copy()  # type: ignore[attr-defined]  # torch has no tensors to read only
    try:
        return torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise FedladaError(
            f"{what} are a {_kind(value)} that is no table of numbers ({error}); number words, such"
            " as classes = sorted(set(words)) and labels = [classes.index(w) for w in words], and"
            " give all rows the same length"
        ) from error


def source_of(data: object) -> Source:
    """Return a client's data as a source of batches; nothing is copied or read yet."""
    if isinstance(data, ClientData):
        return data
    if hasattr(data, "inputs") and hasattr(data, "labels"):
        return ClientData(data.inputs, data.labels, getattr(data, "columns", ()))
    if _is_pair(data):
        inputs, labels = cast(Sequence[Any], data)
        return ClientData(inputs, labels)
    check_single(data)
    _check_several_inputs(data)
    if isinstance(data, TensorDataset):
        require(
            len(data.tensors) == 2,
            f"the TensorDataset has {len(data.tensors)} tensors; it must have two, inputs and"
            " labels",
        )
        return ClientData(data.tensors[0], data.tensors[1])
    require(
        not isinstance(data, DataLoader | IterableDataset),
        f"the data are a {_kind(data)}, which chooses its examples itself; give a map-style dataset"
        " here, such as loader.dataset, or iterate over it in a loop of your own: train=loop",
    )
    readable = hasattr(data, "__getitem__") and hasattr(data, "__len__")
    if isinstance(data, Tensor | str | Mapping) or hasattr(data, "__array__") or not readable:
        raise FedladaError(
            f"client data are a {_kind(data)}; give (inputs, labels), or a Dataset, for each"
            " client. If one set holds the examples of all clients, split it:"
            " fedlada.data.split(inputs, labels, clients=10)"
        )
    return _Items(cast(Sequence[Any], data))


def check_single(data: object) -> None:
    """Raise an error if the data of a client are one example, such as an image and its label."""
    if not (isinstance(data, tuple | list) and len(data) == 2):
        return
    label = data[1]
    if isinstance(label, int | float | str) or getattr(label, "shape", None) == ():
        raise FedladaError(
            f"client data are one example, a {_kind(data[0])} with the label {label!r:.50}, and"
            " each client needs a set of them. If one dataset holds the examples of all clients,"
            " split it: fedlada.data.split(dataset, clients=10)"
        )


def _check_several_inputs(data: object) -> None:
    """Raise an error if there are several inputs for each label."""
    if not (isinstance(data, tuple | list) and len(data) == 2):
        return
    inputs, labels = data
    if (
        isinstance(inputs, tuple | list)
        and not isinstance(labels, tuple | list)
        and all(isinstance(part, Tensor) or hasattr(part, "__array__") for part in inputs)
    ):
        raise FedladaError(
            f"inputs are {len(inputs)} tables, and a model here gets one; join them, such as"
            " torch.cat((x1, x2), 1), and take them apart in the model's forward(), or give train=,"
            " a loop of your own"
        )


def source_for(model: nn.Module, data: object) -> Source:
    """Return a client's data as a source of batches on the model's device."""
    source, device = source_of(data), device_of(model)
    if isinstance(source, ClientData) and {source.inputs.device, source.labels.device} == {device}:
        return source
    return _Moved(source, device)


def read(data: object, size: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield inputs and labels in batches, in order; a DataLoader has its own batches."""
    if isinstance(data, DataLoader):
        yield from loaded(data)
        return
    source = source_of(data)
    for start in range(0, len(source), size):
        yield source.batch(slice(start, start + size))


def loaded(loader: DataLoader[Any]) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the batches of a DataLoader."""
    for batch in loader:
        require(
            isinstance(batch, tuple | list) and len(batch) == 2,
            f"a batch of the DataLoader is a {_kind(batch)}; it must be a pair of inputs and"
            " labels: return both from the dataset, or give train=, a loop of your own",
        )
        yield _pair(batch)


def _pair(batch: Sequence[Any]) -> tuple[Tensor, Tensor]:
    inputs, labels = batch
    return as_tensor(inputs, "inputs"), as_tensor(labels, "labels")


def examples_in(data: object) -> int:
    """Return the number of a client's examples: of a pair, the number of labels."""
    if _is_pair(data):
        return len(cast(Sequence[Any], data)[1])
    if isinstance(data, DataLoader) and hasattr(data.dataset, "__len__"):
        return len(data.dataset)
    require(
        hasattr(data, "__len__"),
        f"client data are a {_kind(data)}, which has no length; give it a __len__, the number of"
        " the client's examples",
    )
    return len(cast(Sequence[Any], data))


def _is_pair(data: object) -> bool:
    """Tell ``(inputs, labels)`` from a list of examples, which are pairs themselves."""
    return (
        isinstance(data, tuple | list)
        and len(data) == 2
        and not any(isinstance(part, tuple) for part in data)
        and all(hasattr(part, "__len__") for part in data)
    )


def _kind(value: object) -> str:
    shape = getattr(value, "shape", None)
    return type(value).__name__ + (f" of shape {list(shape)}" if shape is not None else "")
