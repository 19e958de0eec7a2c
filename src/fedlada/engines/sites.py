"""The clients of a simulation: their data by number, and their names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeVar, cast

from torch.utils.data import Dataset

from ..errors import require
from ..training.examples import check_single

__all__ = ["ClientDatasets", "check_clients", "client_number", "names_of", "sites"]

T = TypeVar("T")
D_co = TypeVar("D_co", covariant=True)


class ClientDatasets(Protocol[D_co]):
    """The data of every client by number; it may be created on demand.

    With an attribute ``names``, a sequence with one word for each client, messages, frames and
    figures show these names.
    """

    def __len__(self) -> int: ...
    def __getitem__(self, client: int, /) -> D_co: ...


class _Sites(list[T]):
    """The data of sites by their names; clients are numbered in their order."""

    def __init__(self, data: Mapping[str, T]) -> None:
        super().__init__(data.values())
        self.names = tuple(map(str, data))


def sites(data: ClientDatasets[T] | Mapping[str, T]) -> ClientDatasets[T]:
    """Return the data of clients by number, of a dict with those of each site by its name."""
    clients = _Sites(data) if isinstance(data, Mapping) else data
    check_clients(clients)
    return clients


def check_clients(data: object) -> None:
    """Check that the data are those of clients by number, and that there are some."""
    kind = type(data).__name__
    require(
        hasattr(data, "__len__") and hasattr(data, "__getitem__"),
        f"data are a {kind}; give a list with the data of each client, such as"
        " [(inputs_0, labels_0), (inputs_1, labels_1)], or a dict with the data of each site by its"
        " name",
    )
    require(
        not hasattr(data, "columns") or hasattr(data, "inputs"),
        f"data are a {kind}, one table; make clients of its rows:"
        " fedlada.data.by_owner(fedlada.data.from_table(table, inputs=..., label=..., owner=...))",
    )
    require(
        len(data) > 0,  # type: ignore[arg-type]
        f"data are a {kind} of 0 clients; give the data of one client or more, such as"
        " fedlada.data.split(inputs, labels, clients=10)",
    )
    if isinstance(data, Dataset):
        check_single(cast(Sequence[Any], data)[0])


def names_of(data: object) -> tuple[str, ...]:
    """Return the names of the clients, in the order of their numbers; nothing if they have none."""
    names = getattr(data, "names", ())
    if not isinstance(names, Sequence) or isinstance(names, str) or not hasattr(data, "__len__"):
        return ()
    words = tuple(map(str, names))
    return words if len(words) == len(set(words)) == len(data) else ()


def client_number(client: int | str, clients: int, names: Sequence[str]) -> int:
    """Return the number of a client that is given by its number or its name."""
    if client in names:
        return names.index(str(client))
    known = f"; their names are {', '.join(names[:10])}" if names else ""
    require(
        type(client) is int and 0 <= client < clients,
        f"client is {client!r}; clients are numbered from 0 to {clients - 1}{known}",
    )
    return int(client)
