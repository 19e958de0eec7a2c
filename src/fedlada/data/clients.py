"""The data of each client, gathered on request."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from ..errors import require
from ..training.examples import ClientData
from .examples import Examples, listed
from .partitioning import Partition

__all__ = ["ClientData", "Clients"]


@dataclass(frozen=True, eq=False, repr=False)
class Clients:
    """All clients of a partition; ``clients[i]`` copies the samples of client i and no others.

    Args:
        examples: the samples.
        partition: which client holds which samples.
        transform: a function applied once to all inputs of a client, such as ``Augment.plain`` if
            training does not augment. By default inputs are unchanged.
    """

    examples: Examples
    partition: Partition
    transform: Callable[[Tensor], Tensor] | None = None

    def __post_init__(self) -> None:
        """Check that the partition was made for these examples."""
        require(
            len(self.partition.labels) == len(self.examples),
            f"The partition is of {len(self.partition.labels)} samples and there are "
            f"{len(self.examples)} examples; make it with partition(examples.labels, ...).",
        )

    def __len__(self) -> int:
        """Return the number of clients."""
        return len(self.partition)

    def __repr__(self) -> str:
        who = f" ({listed(self.names)})" if self.names else ""
        least, most = min(self.sizes, default=0), max(self.sizes, default=0)
        return f"Clients({len(self)} clients{who} with {least} to {most} of {self.examples})"

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the clients, if each client is an owner."""
        return self.partition.names

    @property
    def sizes(self) -> list[int]:
        """The number of examples of each client."""
        return [len(rows) for rows in self.partition.indices]

    def __getitem__(self, client: int) -> ClientData:
        """Return a copy of the samples of one client."""
        if not 0 <= client < len(self):
            raise IndexError(
                f"There is no client {client}; clients are numbered from 0 to {len(self) - 1}."
            )
        rows = self.partition.indices[client]
        inputs = self.examples.inputs[rows]
        return ClientData(
            inputs=inputs if self.transform is None else self.transform(inputs),
            labels=self.examples.labels[rows],
            columns=self.examples.columns,
        )
