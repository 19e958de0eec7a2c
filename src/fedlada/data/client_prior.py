r"""Flower partitioners that draw a separate label distribution for every client.

There are m clients of equal size, and client i has label probabilities p_i ~ Dir(alpha * 1). Each
turn goes to a random client that is not yet full; client i draws a label from p_i and takes the
next sample of that class. The two partitioners differ in what happens when a class has run out:

``ClientPriorPartitioner``
    the label is drawn again from the remaining classes, so no sample is used twice
    (T.-M. H. Hsu et al., "Measuring the Effects of Non-Identical Data Distribution for
    Federated Visual Classification", 2019);
``WrappedClientPriorPartitioner``
    the class starts again from its first sample, so every label follows p_i exactly, some
    samples are used more than once and others never. This is the split of the FedLADA
    authors' simulator (which draws again, once, in the turn in which a class has run out).

Flower's ``InnerDirichletPartitioner`` draws the first kind one sample at a time. It is not used
because it needs seconds for CIFAR and fails if every class with a positive probability for a
client has run out, which is likely with a small alpha. Here such a client takes samples of the
remaining classes.
"""

import numpy as np
from numpy.typing import NDArray

from ..errors import missing_extra

try:
    from datasets import Dataset
    from flwr_datasets.partitioner import Partitioner
except ModuleNotFoundError as error:
    raise missing_extra(error, "fedlada.data", "fedlada[data]") from error

Rows = NDArray[np.int64]


class ClientPriorPartitioner(Partitioner):  # type: ignore[misc]  # flwr_datasets is untyped
    """Give each client its own label distribution and use no sample twice.

    Client sizes differ by at most one and every sample is used. Within a class, samples are dealt
    in the order of the dataset: shuffle the dataset first, as ``FederatedDataset`` does.

    Args:
        num_partitions: the number of clients.
        partition_by: the column with the labels.
        alpha: concentration of the Dirichlet distribution; smaller is more heterogeneous.
        seed: determines every random choice.
    """

    def __init__(
        self, num_partitions: int, partition_by: str, *, alpha: float, seed: int = 42
    ) -> None:
        super().__init__()
        self._num_partitions = num_partitions
        self._partition_by = partition_by
        self._alpha = alpha
        self._seed = seed
        self._rows: list[Rows] | None = None

    @property
    def num_partitions(self) -> int:
        """The number of clients."""
        return self._num_partitions

    def load_partition(self, partition_id: int) -> Dataset:
        """Return the samples of one client; the first call divides the dataset."""
        if self._rows is None:
            self._rows = self._divide()
        return self.dataset.select(self._rows[partition_id])

    def _divide(self) -> list[Rows]:
        column = self.dataset.select_columns(self._partition_by)[:][self._partition_by]
        _, labels = np.unique(column, return_inverse=True)
        stock = np.bincount(labels)
        rng = np.random.default_rng(self._seed)
        turns = _turns(rng, clients=self._num_partitions, samples=len(labels))
        priors = rng.dirichlet(np.full(len(stock), self._alpha), size=self._num_partitions)
        drawn = self._settle(
            _draw(rng, priors[turns]), turns=turns, priors=priors, stock=stock, rng=rng
        )
        rows = np.empty_like(turns)
        for label, amount in enumerate(stock):
            takers = np.flatnonzero(drawn == label)
            rows[takers] = np.flatnonzero(labels == label)[np.arange(len(takers)) % amount]
        sizes = np.bincount(turns, minlength=self._num_partitions)
        return np.split(rows[np.argsort(turns, kind="stable")], np.cumsum(sizes)[:-1])

    def _settle(
        self,
        drawn: Rows,
        *,
        turns: Rows,
        priors: NDArray[np.float64],
        stock: Rows,
        rng: np.random.Generator,
    ) -> Rows:
        """Draw a label again if its class has run out.

        Classes are closed in the order in which they run out. Only later turns are drawn again and
        earlier turns stay, so the result has the same distribution as drawing turn by turn, at the
        cost of one pass per class.
        """
        left = np.ones(len(stock), dtype=bool)
        while True:
            exceeded = np.flatnonzero(np.bincount(drawn, minlength=len(stock)) > stock)
            if not len(exceeded):
                return drawn
            takers = [np.flatnonzero(drawn == label) for label in exceeded]
            late = [turns[stock[label] :] for turns, label in zip(takers, exceeded, strict=True)]
            first = min(range(len(exceeded)), key=lambda j: late[j][0])
            left[exceeded[first]] = False
            weights = np.where(left, priors[turns[late[first]]], 0.0)
            weights[weights.sum(axis=1) == 0] = np.where(left, stock, 0)
            drawn[late[first]] = _draw(rng, weights)


class WrappedClientPriorPartitioner(ClientPriorPartitioner):
    """Give each client its own label distribution exactly, reusing a class that has run out.

    Arguments and sizes are those of ``ClientPriorPartitioner``.
    """

    def _settle(self, drawn: Rows, **_: object) -> Rows:
        """Return the drawn labels unchanged."""
        return drawn


def _turns(rng: np.random.Generator, *, clients: int, samples: int) -> Rows:
    """Return the client of each turn, drawn uniformly from the clients that are not yet full."""
    size = -(-samples // clients)
    # The arrivals of independent Poisson processes of equal rate have this order.
    arrivals = rng.standard_exponential((clients, size)).cumsum(axis=1)
    if samples % clients:
        arrivals[samples % clients :, -1] = np.inf
    return np.argsort(arrivals, axis=None)[:samples] // size


def _draw(rng: np.random.Generator, weights: NDArray[np.float64]) -> Rows:
    """Draw one column number per row, in proportion to that row's weights."""
    edges = weights.cumsum(axis=1)
    # The division makes the last edge exactly 1, above every draw, despite rounding.
    edges /= edges[:, -1:]
    return np.asarray((edges <= rng.random((len(weights), 1))).sum(axis=1), dtype=np.int64)
