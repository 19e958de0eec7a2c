"""Clients made of one set of examples: split at random, by label, or by owner.

>>> clients = split(x, y, clients=20, kind="client-prior")
>>> hospitals = by_owner(x, y, owners=table["hospital"])
>>> examples = from_table(table, inputs=["age", "weight"], label="stay", owner="hospital")

Inputs and labels may be tensors, arrays of numpy, columns of a data frame, or lists.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Literal, cast

import torch
from torch import Tensor
from torch.utils.data import Dataset, Subset, TensorDataset

from ..errors import FedladaError, require
from ..training.diagnosis import whole_labels
from ..training.examples import as_tensor, source_of
from .clients import ClientData, Clients
from .examples import Examples, is_missing
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
    table: object,
    *,
    inputs: str | Sequence[str],
    label: str | Sequence[str],
    owner: str | None = None,
    categories: Sequence[str] | Mapping[str, Sequence[object]] = (),
    missing: Literal["refuse", "drop", "keep"] = "refuse",
) -> Examples:
    """Return columns of a table as examples: of a Hugging Face dataset, a data frame or a dict.

    ``inputs`` is a column, or several columns of numbers.  Labels that are words become classes,
    numbered in alphabetical order; several columns of labels must be numbers.

    ``categories`` are columns of ``inputs`` whose words become a column of 0 and 1 for each word.
    If every site has a table of its own, give the words, too, so that all have the same columns:
    ``categories={"sex": ["f", "m"]}``.

    A row without a value is an error by default.  ``missing="drop"`` leaves it out and says how
    many there were.  ``missing="keep"`` keeps missing inputs as NaN, which
    ``fedlada.data.standardise(clients, missing="mean")`` replaces by the mean over all sites.
    """
    several = not isinstance(inputs, str)
    names = [inputs] if isinstance(inputs, str) else list(inputs)
    labels = [label] if isinstance(label, str) else list(label)
    require(bool(names), f"inputs are {inputs!r}; name one column or more, such as inputs=['age']")
    require(bool(labels), f"label is {label!r}; name one column or more, such as label='stay'")
    require(
        missing in ("refuse", "drop", "keep"),
        f"missing is {missing!r}; it must be 'refuse', 'drop' or 'keep'",
    )
    words = _words(categories, names)
    needed = [*names, *labels, *([owner] if owner else [])]
    columns = {name: _column(table, name) for name in needed}
    kept = _complete(columns, [*labels, *([owner] if owner else [])], owner, missing)
    if kept is not None:
        columns = {name: _taken(column, kept) for name, column in columns.items()}
    titles, parts = list[str](), list[Tensor]()
    for name in names:
        if name in words:
            found, part = _indicators(columns[name], name, words[name])
            titles += [f"{name}={word}" for word in found]
            parts += part
        else:
            titles.append(name)
            parts.append(_tensor(columns[name], name))
    several = several or bool(words)
    wanted, classes = _labels(columns, labels)
    return Examples(
        torch.stack([_number(part) for part in parts], dim=1) if several else parts[0],
        wanted,
        classes=classes,
        owners=None if owner is None else _listed(columns[owner]),
        columns=tuple(titles) if several else (),
    )


def _labels(columns: Mapping[str, Any], names: Sequence[str]) -> tuple[Tensor, tuple[str, ...]]:
    """Return the labels, and the names of the classes if they are words."""
    if len(names) > 1:
        return torch.stack([_number(_tensor(columns[name], name)) for name in names], dim=1), ()
    (name,) = names
    words = _listed(columns[name])
    if words and all(isinstance(word, str) for word in words):
        classes = tuple(sorted(set(words)))
        numbers = {word: number for number, word in enumerate(classes)}
        return torch.tensor([numbers[word] for word in words]), classes
    return whole_labels(_tensor(columns[name], name)), ()


def _words(
    categories: Sequence[str] | Mapping[str, Sequence[object]], inputs: Sequence[str]
) -> dict[str, Sequence[object] | None]:
    """Return the words of each category; None if they are those of the table."""
    if isinstance(categories, str):
        categories = [categories]
    for name in categories:
        require(
            name in inputs,
            f"categories have {name!r}, which is none of the inputs {', '.join(inputs)}; name it"
            " there, too",
        )
    return dict(categories) if isinstance(categories, Mapping) else dict.fromkeys(categories)


def _complete(
    columns: Mapping[str, Any], wanted: Sequence[str], owner: str | None, missing: str
) -> list[int] | None:
    """Return the rows to keep, or None for all of them; ``wanted`` may never be missing."""
    without = {name: rows for name, column in columns.items() if (rows := _missing(column))}
    if missing == "keep":
        without = {name: rows for name, rows in without.items() if name in wanted}
    if not without:
        return None
    if missing != "drop":
        name, rows = next(iter(without.items()))
        site = f" ({_listed(columns[owner])[rows[0]]})" if owner else ""
        others = f", nor in {len(rows) - 1} other rows" if len(rows) > 1 else ""
        keep = (
            ", and missing='keep' keeps them for fedlada.data.standardise(clients, missing='mean')"
        )
        more = "" if name in wanted else keep
        raise FedladaError(
            f"column {name!r} has no value in row {rows[0]}{site}{others}; missing='drop' leaves"
            f" such rows out{more}"
        )
    gone = {row for rows in without.values() for row in rows}
    count = len(_listed(next(iter(columns.values()))))
    each = ", ".join(f"{name} in {len(rows)}" for name, rows in without.items())
    warnings.warn(
        f"missing='drop' leaves out {len(gone)} of {count} rows, which have no value of: {each}",
        stacklevel=3,
    )
    return [row for row in range(count) if row not in gone]


def _missing(column: Any) -> list[int]:
    """Return the rows in which a column has no value."""
    numbers = _array(column)
    if numbers is not None:
        values = as_tensor(numbers, "a column")
        return values.isnan().nonzero().flatten().tolist() if values.dim() == 1 else []
    first = next(iter(column), None)
    if _is_image(first) or len(getattr(first, "shape", ())):
        return []
    return [row for row, cell in enumerate(_listed(column)) if is_missing(cell)]


def _taken(column: Any, rows: Sequence[int]) -> Any:
    cells = column if isinstance(column, Tensor) else _listed(column)
    return cells[torch.tensor(rows)] if isinstance(cells, Tensor) else [cells[row] for row in rows]


def _indicators(
    column: Any, name: str, words: Sequence[object] | None
) -> tuple[list[object], list[Tensor]]:
    """Return the words of a category, and a column of 0 and 1 for each."""
    cells = [None if is_missing(cell) else cell for cell in _listed(column)]
    known = list(words or sorted({cell for cell in cells if cell is not None}, key=str))
    for row, cell in enumerate(cells):
        if cell is not None and cell not in known:
            raise FedladaError(
                f"column {name!r} has {cell!r} in row {row}, which is none of its categories"
                f" {', '.join(map(str, known))}; add it there, at all sites"
            )
    absent = torch.tensor([cell is None for cell in cells])
    columns = [torch.tensor([float(cell == word) for cell in cells]) for word in known]
    return known, [column.masked_fill(absent, float("nan")) for column in columns]


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
    rows = not known and hasattr(table, "__getitem__") and hasattr(table, "__len__")
    if rows and len(cast(Any, table)) and isinstance(cast(Any, table)[0], Mapping):
        known = list(cast(Any, table)[0])  # a dataset or a list whose examples are tables
    if name not in known:
        raise FedladaError(
            f"there is no column {name!r} in the {type(table).__name__}; it has"
            f" {', '.join(map(str, known)) or 'none'}: name one of these"
        )
    if rows:
        return [cast(Any, table)[row][name] for row in range(len(cast(Any, table)))]
    return cast(Any, table)[name]


def _listed(column: Any) -> list[Any]:
    for method in ("to_list", "tolist"):  # of polars and pandas; of numpy and torch
        if hasattr(column, method):
            return list(getattr(column, method)())
    return list(column)


def _tensor(column: Any, name: str) -> Tensor:
    """Return a column as a tensor; the cells of a Hugging Face dataset may be tensors."""
    numbers = _array(column)
    if numbers is not None:
        return as_tensor(numbers, f"column {name!r}")
    cells = _listed(column)
    if cells and isinstance(cells[0], Tensor):
        return torch.stack(cells)
    require(
        not (cells and _is_image(cells[0])),
        f"a cell of column {name!r} is a {type(cells[0]).__name__ if cells else ''}; let the"
        ' dataset give tensors: dataset.with_format("torch")',
    )
    for row, cell in enumerate(cells):
        require(
            not isinstance(cell, str) or cell == "",
            f"column {name!r} has words, such as {cell!r} in row {row}; name it in"
            f" categories=[{name!r}], number its words, or leave it out",
        )
        require(
            not hasattr(cell, "isoformat") or is_missing(cell),
            f"column {name!r} has dates, such as {cell} in row {row}; give numbers, such as years",
        )
    nan = float("nan")
    values = [nan if is_missing(cell) else cell for cell in cells]
    if any(isinstance(value, float) for value in values):
        return torch.tensor(values, dtype=torch.float64)
    return as_tensor(values, f"column {name!r}")


def _array(column: Any) -> Any:
    """Return a column of numbers as a tensor or an array; None if it is another column."""
    if hasattr(column, "to_numpy"):  # of pandas or polars
        column = column.to_numpy()
    kind = getattr(getattr(column, "dtype", None), "kind", "")
    return column if isinstance(column, Tensor) or kind in ("b", "i", "u", "f") else None


def _is_image(cell: object) -> bool:
    """Tell a picture, which numpy could read but which has no numbers of its own."""
    return hasattr(cell, "__array_interface__") and not hasattr(cell, "dtype")


def _number(t: Tensor) -> Tensor:
    return t.double()
