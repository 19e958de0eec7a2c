import numpy as np
import pytest
from datasets import Dataset
from flwr_datasets.partitioner import InnerDirichletPartitioner

from fedlada.data.client_prior import ClientPriorPartitioner, WrappedClientPriorPartitioner


def largest_share(partitioner, labels):
    partitioner.dataset = Dataset.from_dict({"label": labels})
    clients = [partitioner.load_partition(i)[:]["label"] for i in range(partitioner.num_partitions)]
    return np.mean([np.bincount(client).max() / len(client) for client in clients])


def test_client_prior_has_the_skew_of_flowers_sample_by_sample_version():
    # Classes of unequal size, so that some of them run out.
    labels = [0] * 5 + [1] * 10 + [2] * 15
    ours, flowers = (
        np.mean([largest_share(make(seed), labels) for seed in range(100)])
        for make in (
            lambda seed: ClientPriorPartitioner(3, "label", alpha=0.3, seed=seed),
            lambda seed: InnerDirichletPartitioner([10] * 3, "label", 0.3, seed=seed),
        )
    )
    assert ours == pytest.approx(flowers, abs=0.03)


def test_a_client_whose_classes_have_all_run_out_takes_what_is_left():
    # At this concentration a client wants one class, and ten clients cannot all have theirs.
    labels = np.arange(100) % 5
    partitioner = ClientPriorPartitioner(10, "label", alpha=1e-8, seed=0)
    partitioner.dataset = Dataset.from_dict({"label": labels, "row": np.arange(100)})
    rows = np.concatenate([partitioner.load_partition(i)[:]["row"] for i in range(10)])
    assert sorted(rows) == list(range(100))


@pytest.mark.parametrize("kind", [ClientPriorPartitioner, WrappedClientPriorPartitioner])
def test_labels_may_be_words(kind):
    labels = ["cat", "dog", "dog", "owl"] * 5
    partitioner = kind(4, "label", alpha=0.5, seed=0)
    partitioner.dataset = Dataset.from_dict({"label": labels})
    assert [len(partitioner.load_partition(i)) for i in range(4)] == [5, 5, 5, 5]


def test_a_partition_does_not_depend_on_which_was_loaded_first():
    labels = np.arange(100) % 5
    forwards, backwards = (ClientPriorPartitioner(4, "label", alpha=0.5, seed=1) for _ in range(2))
    forwards.dataset = backwards.dataset = Dataset.from_dict({"label": labels})
    first = [forwards.load_partition(i)[:] for i in range(4)]
    last = [backwards.load_partition(i)[:] for i in reversed(range(4))]
    assert first == last[::-1]
