"""Partitions: which client holds which samples.

Three kinds draw from a Dirichlet distribution, each in a different way.
``fedlada.data.client_prior`` describes ``client-prior`` and ``client-prior-wrapped``.
``class-prior`` is Flower's ``DirichletPartitioner``, which splits each class over the clients, so
that clients differ in size. ``iid`` deals the samples out evenly at random. ``natural`` makes one
client of each owner, such as a writer, a hospital or a role in a play.
"""

import itertools
import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from numbers import Real
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..errors import FedladaError, missing_extra, require
from ..training.diagnosis import whole_labels
from ..training.examples import as_tensor
from .examples import check_owners

if TYPE_CHECKING:
    from flwr_datasets.partitioner import Partitioner

KINDS = ("iid", "client-prior", "client-prior-wrapped", "class-prior", "natural")


@dataclass(frozen=True, eq=False)
class Summary:
    """The sizes and labels of the clients of a partition.

    ``repeated`` counts the uses of a sample after its first use, so
    ``sizes.sum() == samples - unused + repeated`` always holds. ``histograms`` counts the labels
    of each client by class; it is None if labels are not classes.
    """

    kind: str
    """How the samples were divided."""
    samples: int
    """Number of samples."""
    sizes: Tensor
    """Number of samples of each client."""
    histograms: Tensor | None
    unused: int
    """Number of samples that no client has."""
    repeated: int

    def __str__(self) -> str:
        """Return the summary as a few lines of text."""
        lines = [
            f"{self.kind}: {self.samples:,} samples on {len(self.sizes):,} clients, "
            f"{self.unused:,} unused, {self.repeated:,} repeated",
            f"samples per client: {_spread(self.sizes)}",
        ]
        if self.histograms is not None:
            present = (self.histograms > 0).sum(dim=1)
            share = 100 * self.histograms.amax(dim=1) / self.sizes.clamp(min=1)
            lines += [
                f"classes per client: {_spread(present)} of {self.histograms.shape[1]}",
                f"share of a client's largest class: {_spread(share)} %",
            ]
        return "\n".join(lines)


@dataclass(frozen=True, eq=False)
class Partition:
    """The row numbers (int64) of every client's samples, and the kind of the partition."""

    kind: str
    """How the samples were divided, such as ``iid``."""
    indices: tuple[Tensor, ...] = field(repr=False)
    """The row numbers of the samples of each client."""
    labels: Tensor = field(repr=False)
    """The labels of all samples."""
    names: tuple[str, ...] = field(default=(), repr=False)
    """The names of the clients, if each client is an owner."""

    def __len__(self) -> int:
        """Return the number of clients."""
        return len(self.indices)

    def summary(self) -> Summary:
        """Return client sizes, label histograms, and the numbers of unused and repeated samples."""
        sizes = torch.tensor([len(rows) for rows in self.indices])
        rows = torch.cat(self.indices)
        uses = torch.bincount(rows, minlength=len(self.labels))
        return Summary(
            kind=self.kind,
            samples=len(self.labels),
            sizes=sizes,
            histograms=self._histograms(sizes, rows) if _name_classes(self.labels) else None,
            unused=int((uses == 0).sum()),
            repeated=int((uses - 1).clamp(min=0).sum()),
        )

    def _histograms(self, sizes: Tensor, rows: Tensor) -> Tensor:
        classes = int(self.labels.max()) + 1
        holders = torch.repeat_interleave(torch.arange(len(sizes)), sizes)
        cells = holders * classes + self.labels[rows]
        return torch.bincount(cells, minlength=len(sizes) * classes).view(-1, classes)


def partition(
    labels: Tensor | Sequence[int],
    kind: str,
    *,
    clients: int | None = None,
    concentration: float = 0.6,
    seed: int = 0,
    owners: Sequence[int | str] | Tensor | None = None,
) -> Partition:
    """Split samples with these labels over clients.

    Args:
        labels: [N], int64 from 0, as a tensor, an array or a list; ``iid`` and ``natural`` take
            labels of any type.
        kind: one of ``KINDS``.
        clients: the number of clients; ``natural`` has one for each owner.
        concentration: of the Dirichlet distribution; smaller is more heterogeneous. ``iid`` and
            ``natural`` ignore it.
        seed: determines every random choice; global generators are not used.
        owners: the owner of each sample, for ``natural``.
    """
    values = as_tensor(labels, "labels")
    labels = values if isinstance(labels, Tensor) else whole_labels(values)
    if kind == "natural":
        return _natural(labels, owners, clients=clients)
    count = _check(labels, kind, clients=clients, concentration=concentration, seed=seed)
    try:
        from datasets import Dataset
    except ModuleNotFoundError as error:
        raise missing_extra(error, "fedlada.data", "fedlada[data]") from error

    # Flower's partitioners deal samples in the order of the dataset, so shuffle it first. The
    # column "row" holds the original row number of each sample.
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    partitioner = _partitioner(kind, clients=count, concentration=concentration, seed=seed)
    columns = {"row": order.numpy()}
    if kind != "iid":
        columns["label"] = labels[order].cpu().numpy()
    partitioner.dataset = Dataset.from_dict(columns)
    try:
        with warnings.catch_warnings():
            # Flower warns each time it draws again because a client is empty.
            warnings.filterwarnings("ignore", message="The specified min_partition_size")
            partitioner.load_partition(0)
    except ValueError as error:
        raise FedladaError(
            f"{kind} with concentration={concentration} left one of {clients} clients without "
            f"any of {len(labels)} samples in every attempt; use fewer clients, a larger "
            "concentration, or kind='client-prior', whose clients are equally large."
        ) from error
    indices = tuple(
        torch.tensor(partitioner.load_partition(client)[:]["row"]) for client in range(count)
    )
    return Partition(kind=kind, indices=indices, labels=labels)


def held_out_alike(
    held_out: Tensor,
    among: Partition,
    *,
    seed: int = 0,
    owners: Sequence[int | str] | Tensor | None = None,
) -> Partition:
    """Split held-out samples with these labels over the clients of a partition.

    Each sample goes to one client.  Of each class, a client gets a share in proportion to its
    samples of that class in the partition; without classes, in proportion to all its samples.  If
    the clients are owners and ``owners`` are those of the held-out samples, each gets its own.
    """
    if among.names and owners is not None:
        each = list(map(str, owners.tolist() if isinstance(owners, Tensor) else owners))
        of_owner: dict[str, list[int]] = {name: [] for name in among.names}
        for row, owner in enumerate(each):
            of_owner.get(owner, []).append(row)
        indices = [torch.tensor(rows, dtype=torch.int64) for rows in of_owner.values()]
        return Partition(among.kind, tuple(indices), held_out, among.names)
    summary = among.summary()
    sizes, histograms = summary.sizes.tolist(), summary.histograms
    classes = held_out if histograms is not None and _name_classes(held_out) else None
    order = torch.randperm(len(held_out), generator=torch.Generator().manual_seed(seed))
    parts: list[list[Tensor]] = [[] for _ in sizes]
    for number in range(1 if classes is None else int(classes.max()) + 1):
        rows = order if classes is None else order[classes[order] == number]
        counts: list[int] = sizes
        if histograms is not None and classes is not None and number < histograms.shape[1]:
            of_class = histograms[:, number].tolist()
            counts = of_class if any(of_class) else sizes
        ends = [0, *itertools.accumulate(counts)]
        # Rounded sums: every sample goes to one client, and every share is within one of its size.
        cuts = [(2 * end * len(rows) + ends[-1]) // (2 * ends[-1]) for end in ends]
        for part, (first, last) in zip(parts, itertools.pairwise(cuts), strict=True):
            part.append(rows[first:last])
    indices = [torch.cat(part).sort().values for part in parts]
    return Partition(among.kind, tuple(indices), held_out, among.names)


def _natural(
    labels: Tensor, owners: Sequence[int | str] | Tensor | None, *, clients: int | None
) -> Partition:
    """Make one client of each owner, in the order of the owners' names or numbers."""
    require(
        owners is not None,
        "A natural partition needs the owner of every sample; give owners, or choose another of"
        f" {', '.join(KINDS)}.",
    )
    assert owners is not None
    each = owners.tolist() if hasattr(owners, "tolist") else list(owners)
    require(
        len(each) == len(labels) > 0,
        f"There are {len(labels)} labels and {len(each)} owners; give at least one sample, and"
        " every sample one owner.",
    )
    check_owners(each)
    rows: dict[int | str, list[int]] = {owner: [] for owner in sorted(set(each))}
    require(
        clients in (None, len(rows)),
        f"clients is {clients}, but there are {len(rows)} owners; leave clients out.",
    )
    for row, owner in enumerate(each):
        rows[owner].append(row)
    return Partition(
        kind="natural",
        indices=tuple(torch.tensor(numbers) for numbers in rows.values()),
        labels=labels,
        names=tuple(map(str, rows)),
    )


def _partitioner(kind: str, *, clients: int, concentration: float, seed: int) -> "Partitioner":
    try:
        from flwr_datasets.partitioner import DirichletPartitioner, IidPartitioner
    except ModuleNotFoundError as error:
        raise missing_extra(error, "fedlada.data", "fedlada[data]") from error
    from .client_prior import ClientPriorPartitioner, WrappedClientPriorPartitioner

    if kind == "iid":
        return IidPartitioner(clients)
    if kind == "class-prior":
        return DirichletPartitioner(
            clients, "label", float(concentration), min_partition_size=1, seed=seed
        )
    partitioner = ClientPriorPartitioner
    if kind != "client-prior":
        partitioner = WrappedClientPriorPartitioner
    return partitioner(clients, "label", alpha=concentration, seed=seed)


def _check(
    labels: Tensor, kind: str, *, clients: int | None, concentration: float, seed: int
) -> int:
    """Check the arguments and return the number of clients."""
    require(
        kind in KINDS, f"There is no partition kind {kind!r}; choose one of {', '.join(KINDS)}."
    )
    require(
        _name_classes(labels) or (kind == "iid" and len(labels) > 0),
        f"labels are {labels.dtype} of shape {tuple(labels.shape)}; {kind} needs int64 of shape"
        " [N] with N >= 1, numbered from 0. Convert them with labels.long().flatten(), or use"
        " kind='iid' or 'natural' for labels that name no classes.",
    )
    if not isinstance(clients, int) or not 1 <= clients <= len(labels):
        raise FedladaError(
            f"clients is {clients!r}; it must be from 1 to {len(labels)}, the number of samples."
        )
    require(
        isinstance(concentration, Real) and 0 < concentration < math.inf,
        f"concentration is {concentration!r}; it must be positive and finite, such as 0.6. "
        "For equal label distributions use kind='iid'.",
    )
    require(
        isinstance(seed, int) and seed >= 0,
        f"seed is {seed!r}; it must be 0 or more, a whole number.",
    )
    return clients


def _name_classes(labels: Tensor) -> bool:
    """Return whether each label is the number of a class."""
    plain = labels.dim() == 1 and labels.dtype == torch.int64
    return plain and len(labels) > 0 and int(labels.min()) >= 0


def _spread(values: Tensor) -> str:
    return f"{values.min():.0f} to {values.max():.0f}, mean {values.double().mean():.1f}"
