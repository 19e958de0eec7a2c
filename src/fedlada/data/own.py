"""Clients made of one set of examples: split at random, by label, or by owner.

>>> clients = split(x, y, clients=20, kind="client-prior")
>>> hospitals = by_owner(x, y, owners=table["hospital"])
>>> examples = from_table(table, inputs=["age", "weight"], label="stay", owner="hospital")

Inputs and labels may be tensors, arrays of numpy, columns of a data frame, or lists.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor
from torch.utils.data import Dataset, Subset, TensorDataset

from ..client.labelled import as_tensor, source_of
from ..client.mistakes import whole_labels
from ..errors import FedladaError, require
from .clients import ClientData, Clients
from .examples import Examples
from .partitioning import partition

__all__ = ["by_owner", "from_table", "split"]

CHUNK = 256
"""Examples of a dataset that are read at a time to learn their labels."""


def split(
    inputs: object,
    labels: object = None,
    *,
    clients: int,
    kind: str = "iid",
    concentration: float = 0.6,
    seed: int = 0,
) -> Clients | list[Subset[Any]]:
    """Split examples over clients and return the data of each.

    ``inputs`` may also be an :class:`Examples` or a map-style ``Dataset`` and ``labels`` is left
    out then; of such a dataset each client gets a ``Subset``.  ``kind`` is ``iid``,
    ``client-prior``, ``client-prior-wrapped`` or ``class-prior``: see :func:`partition`.
    """
    settings: dict[str, Any] = {
        "clients": clients,
        "concentration": concentration,
        "seed": seed,
    }
    if labels is None and isinstance(inputs, Dataset) and not isinstance(inputs, TensorDataset):
        dealt = partition(_labels_of(inputs, kind), kind, **settings)
        return [Subset(inputs, rows.tolist()) for rows in dealt.indices]
    examples = _examples(inputs, labels)
    return Clients(examples, partition(examples.labels, kind, **settings))


def by_owner(inputs: object, labels: object = None, *, owners: object = None) -> Clients:
    """Make one client of each owner; ``partition.names`` of the result has their names.

    ``owners`` is a column with the owner of each example, as words or whole numbers.  ``inputs``
    may also be an :class:`Examples` with owners, and nothing else is given then.
    """
    examples = _examples(inputs, labels)
    known = examples.owners if owners is None else _listed(owners)
    require(
        known is not None,
        "owners are None; give the owner of each example, such as owners=table['hospital'], or use"
        " fedlada.data.split for examples without owners",
    )
    return Clients(examples, partition(examples.labels, "natural", owners=known))


def from_table(
    table: object, *, inputs: str | Sequence[str], label: str, owner: str | None = None
) -> Examples:
    """Return columns of a table as examples: of a Hugging Face dataset, a data frame or a dict.

    ``inputs`` is a column, or several columns of numbers.  Labels that are words become classes,
    numbered in alphabetical order.
    """
    several = not isinstance(inputs, str)
    columns = [_column(table, name) for name in ([inputs] if isinstance(inputs, str) else inputs)]
    require(
        bool(columns), f"inputs are {inputs!r}; name one column or more, such as inputs=['age']"
    )
    tensors = [_tensor(column, "inputs") for column in columns]
    words = _listed(_column(table, label))
    classes: tuple[str, ...] = ()
    if words and all(isinstance(word, str) for word in words):
        classes = tuple(sorted(set(words)))
        numbers = {word: number for number, word in enumerate(classes)}
        wanted = torch.tensor([numbers[word] for word in words])
    else:
        wanted = whole_labels(_tensor(_column(table, label), "labels"))
    return Examples(
        torch.stack([_number(t) for t in tensors], dim=1) if several else tensors[0],
        wanted,
        classes=classes,
        owners=None if owner is None else _listed(_column(table, owner)),
    )


def _examples(inputs: object, labels: object) -> Examples:
    if isinstance(inputs, Examples):
        return inputs
    if labels is None:
        whole = source_of(inputs)
        require(
            isinstance(whole, ClientData),
            f"inputs are a {type(inputs).__name__} and labels are None; give both, or an Examples",
        )
        inputs, labels = cast(ClientData, whole).inputs, cast(ClientData, whole).labels
    return Examples(as_tensor(inputs, "inputs"), whole_labels(as_tensor(labels, "labels")))


def _labels_of(dataset: Dataset[Any], kind: str) -> Tensor:
    """Read the labels of a dataset, from its ``targets`` if it has them; ``iid`` needs none."""
    source = source_of(dataset)
    if kind == "iid":
        return torch.zeros(len(source), dtype=torch.int64)
    if hasattr(dataset, "targets"):
        return whole_labels(as_tensor(dataset.targets, "targets"))
    starts = range(0, len(source), CHUNK)
    read = [source.batch(slice(start, start + CHUNK))[1] for start in starts]
    return whole_labels(torch.cat(read))


def _column(table: object, name: str) -> Any:
    known = getattr(table, "column_names", None) or getattr(table, "columns", None)
    known = list(table if isinstance(table, dict) else known if known is not None else [])
    if name not in known:
        raise FedladaError(
            f"there is no column {name!r} in the {type(table).__name__}; it has"
            f" {', '.join(map(str, known)) or 'none'}: name one of these"
        )
    return cast(Any, table)[name]


def _listed(column: Any) -> list[Any]:
    for method in ("to_list", "tolist"):  # of polars and pandas; of numpy and torch
        if hasattr(column, method):
            return list(getattr(column, method)())
    return list(column)


def _tensor(column: Any, what: str) -> Tensor:
    """Return a column as a tensor; the cells of a Hugging Face dataset may be tensors."""
    if isinstance(column, Tensor) or hasattr(column, "__array__"):
        return as_tensor(column, what)
    cells = list(column)
    if cells and isinstance(cells[0], Tensor):
        return torch.stack(cells)
    require(
        not (cells and hasattr(cells[0], "__array_interface__")),
        f"a cell of {what} is a {type(cells[0]).__name__ if cells else ''}; let the dataset give"
        ' tensors: dataset.with_format("torch")',
    )
    return as_tensor(cells, what)


def _number(t: Tensor) -> Tensor:
    return t if t.is_floating_point() else t.float()
