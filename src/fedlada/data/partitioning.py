"""Which client holds which samples.

Three kinds draw from a Dirichlet distribution, and they are not the same thing: see
``fedlada.data.client_prior`` for ``client-prior`` and ``client-prior-wrapped``; ``class-prior``
is Flower's ``DirichletPartitioner``, which splits each class over the clients, so that clients
differ in size. ``iid`` deals the samples out evenly at random.
"""

import math
import warnings
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedlada.data.extra import missing

if TYPE_CHECKING:
    from flwr_datasets.partitioner import Partitioner

KINDS = ("iid", "client-prior", "client-prior-wrapped", "class-prior")


@dataclass(frozen=True, eq=False)
class Summary:
    """What a partition did to the data.

    ``repeated`` counts uses of a sample beyond its first, so that always
    ``sizes.sum() == samples - unused + repeated``.
    """

    kind: str
    samples: int
    sizes: Tensor
    histograms: Tensor
    unused: int
    repeated: int

    def __str__(self) -> str:
        """Tell it in a few lines."""
        present = (self.histograms > 0).sum(dim=1)
        share = 100 * self.histograms.amax(dim=1) / self.sizes.clamp(min=1)
        return "\n".join(
            (
                f"{self.kind}: {self.samples:,} samples on {len(self.sizes):,} clients, "
                f"{self.unused:,} unused, {self.repeated:,} repeated",
                f"samples per client: {_spread(self.sizes)}",
                f"classes per client: {_spread(present)} of {self.histograms.shape[1]}",
                f"share of a client's largest class: {_spread(share)} %",
            )
        )


@dataclass(frozen=True, eq=False)
class Partition:
    """The row numbers of every client's samples, int64, and how they were chosen."""

    kind: str
    indices: tuple[Tensor, ...] = field(repr=False)
    labels: Tensor = field(repr=False)

    def __len__(self) -> int:
        """Count the clients."""
        return len(self.indices)

    def summary(self) -> Summary:
        """Report client sizes, label histograms, and what was left out or used again."""
        classes = int(self.labels.max()) + 1
        sizes = torch.tensor([len(rows) for rows in self.indices])
        rows = torch.cat(self.indices)
        owners = torch.repeat_interleave(torch.arange(len(sizes)), sizes)
        cells = owners * classes + self.labels[rows]
        uses = torch.bincount(rows, minlength=len(self.labels))
        return Summary(
            kind=self.kind,
            samples=len(self.labels),
            sizes=sizes,
            histograms=torch.bincount(cells, minlength=len(sizes) * classes).view(-1, classes),
            unused=int((uses == 0).sum()),
            repeated=int((uses - 1).clamp(min=0).sum()),
        )


def partition(
    labels: Tensor, kind: str, *, clients: int, concentration: float = 0.6, seed: int = 0
) -> Partition:
    """Split samples with these labels over clients.

    Args:
        labels: int64, [N], from 0.
        kind: one of ``KINDS``.
        clients: how many clients there are.
        concentration: of the Dirichlet distribution; small is heterogeneous. Not used by ``iid``.
        seed: all randomness follows from it, and none touches a global generator.
    """
    _check(labels, kind, clients=clients, concentration=concentration, seed=seed)
    try:
        from datasets import Dataset
    except ModuleNotFoundError as error:
        raise missing(error) from error

    # Flower's partitioners hand samples out in the order of the dataset and leave shuffling to
    # whoever makes it; the column says where each row came from.
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    partitioner = _partitioner(kind, clients=clients, concentration=concentration, seed=seed)
    partitioner.dataset = Dataset.from_dict(
        {"row": order.numpy(), "label": labels[order].cpu().numpy()}
    )
    try:
        with warnings.catch_warnings():
            # Flower announces each time that it draws again because a client was left empty.
            warnings.filterwarnings("ignore", message="The specified min_partition_size")
            partitioner.load_partition(0)
    except ValueError as error:
        raise ValueError(
            f"{kind} with concentration={concentration} left one of {clients} clients without "
            f"any of {len(labels)} samples in every attempt; use fewer clients, a larger "
            "concentration, or kind='client-prior', whose clients are equally large."
        ) from error
    indices = tuple(
        torch.tensor(partitioner.load_partition(client)[:]["row"]) for client in range(clients)
    )
    return Partition(kind=kind, indices=indices, labels=labels)


def _partitioner(kind: str, *, clients: int, concentration: float, seed: int) -> "Partitioner":
    try:
        from flwr_datasets.partitioner import DirichletPartitioner, IidPartitioner
    except ModuleNotFoundError as error:
        raise missing(error) from error
    from fedlada.data.client_prior import ClientPriorPartitioner, WrappedClientPriorPartitioner

    if kind == "iid":
        return IidPartitioner(clients)
    if kind == "class-prior":
        return DirichletPartitioner(
            clients, "label", float(concentration), min_partition_size=1, seed=seed
        )
    own = ClientPriorPartitioner if kind == "client-prior" else WrappedClientPriorPartitioner
    return own(clients, "label", alpha=concentration, seed=seed)


def _check(labels: Tensor, kind: str, *, clients: int, concentration: float, seed: int) -> None:
    if kind not in KINDS:
        raise ValueError(f"There is no partition kind {kind!r}; choose one of {', '.join(KINDS)}.")
    if labels.dim() != 1 or labels.dtype != torch.int64 or not len(labels) or labels.min() < 0:
        raise ValueError(
            f"labels are {labels.dtype} of shape {tuple(labels.shape)}; partition needs int64 "
            "of shape [N] with N >= 1, numbered from 0. Convert them with labels.long().flatten()."
        )
    if not 1 <= clients <= len(labels):
        raise ValueError(
            f"clients is {clients}; it must be from 1 to {len(labels)}, the number of samples."
        )
    if not 0 < concentration < math.inf:
        raise ValueError(
            f"concentration is {concentration}; it must be positive and finite, such as 0.6. "
            "For equal label distributions use kind='iid'."
        )
    if seed < 0:
        raise ValueError(f"seed is {seed}; it must be 0 or more.")


def _spread(values: Tensor) -> str:
    return f"{values.min():.0f} to {values.max():.0f}, mean {values.double().mean():.1f}"
