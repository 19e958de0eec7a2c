"""What PyTorch people have, as clients: every form of the same data is the same run."""

import datasets
import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, Subset, TensorDataset

import fedlada
from fedlada import Evaluation, LocalTraining, simulate
from fedlada.algorithms import Vector
from fedlada.data import ClientData, Clients, Examples, by_owner, from_table, partition, split
from fedlada.training.examples import as_tensor, examples_in, source_of

GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(60, 5, generator=GENERATOR)
Y = X[:, :3].argmax(1)
ROWS = torch.arange(60).split([10, 20, 30])


class Read(Dataset):
    """A dataset that notes which of its examples are read."""

    def __init__(self, inputs: Tensor, labels: Tensor) -> None:
        self.inputs_, self.labels_, self.read = inputs, labels, []

    def __len__(self) -> int:
        return len(self.labels_)

    def __getitem__(self, row: int) -> tuple[Tensor, int]:
        self.read.append(row)
        return self.inputs_[row], int(self.labels_[row])


FORMS = {
    "pairs of tensors": lambda x, y: (x, y),
    "lists of two tensors": lambda x, y: [x, y],
    "arrays": lambda x, y: (x.numpy(), y.numpy()),
    "arrays of float64 and int32": lambda x, y: (
        x.numpy().astype("float64"),
        y.numpy().astype("int32"),
    ),
    "arrays that may not be written": lambda x, y: (np.broadcast_to(x.numpy(), x.shape), y.numpy()),
    "lists of numbers": lambda x, y: (x.tolist(), y.tolist()),
    "series": lambda x, y: (x.numpy(), pl.Series(y.numpy())),
    "TensorDataset": TensorDataset,
    "Subset": lambda x, y: Subset(TensorDataset(x, y), range(len(y))),
    "Dataset": Read,
    "a list of examples": lambda x, y: [(a, int(b)) for a, b in zip(x, y, strict=True)],
    "Examples": Examples,
}


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(5, 3)


def outcome(data, **settings) -> tuple[Vector, dict]:
    """The model after two rounds over clients of unequal size, and its metrics."""
    run = simulate(
        net(),
        data,
        rounds=2,
        weighting="examples",
        train=LocalTraining(epochs=1, steps=None, batch_size=8),
        **settings,
    )
    *_, last = run.run()
    return run.state.vectors.x, last.metrics


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_the_same_data_is_the_same_run_to_the_bit(form):
    make = FORMS[form]
    usual = [ClientData(X[rows], Y[rows]) for rows in ROWS]
    expected, scores = outcome(usual, evaluate=Evaluation(data=ClientData(X, Y)))
    found, own = outcome(
        [make(X[rows], Y[rows]) for rows in ROWS], evaluate=Evaluation(data=make(X, Y))
    )
    assert found.equal(expected)
    assert own == scores


def test_nothing_is_copied_and_a_dataset_is_read_batch_by_batch():
    array = np.zeros((4, 2), dtype="float32")
    data = ClientData(array, np.arange(4))
    array[2] = 7
    assert data.inputs[2].tolist() == [7, 7]
    assert as_tensor(X, "inputs") is X
    read = Read(X, Y)
    source = source_of(read)
    assert read.read == []
    source.batch(torch.tensor([3, 1]))
    assert read.read == [3, 1]
    source.batch(slice(58, 70))
    assert read.read == [3, 1, 58, 59]


def test_a_loop_of_ones_own_gets_what_was_given_and_a_pair_counts_its_labels():
    seen = []

    def train(model, data, optimizer):
        seen.append(data)
        return LocalTraining(steps=1)(model, data, optimizer)

    given = (X, Y)
    simulate(net(), [given], rounds=1, train=train).run()
    assert seen[0] is given
    assert examples_in(given) == examples_in([X, Y]) == examples_in(TensorDataset(X, Y)) == 60


def test_a_split_is_the_partition_of_that_kind():
    clients = split(X.numpy(), Y.numpy(), clients=4, kind="client-prior", seed=3)
    dealt = partition(Y, "client-prior", clients=4, seed=3)
    assert isinstance(clients, Clients)
    for client, rows in enumerate(dealt.indices):
        assert torch.equal(clients[client].inputs, X[rows])
        assert torch.equal(clients[client].labels, Y[rows])


@pytest.mark.parametrize("labels", [Y.tolist(), Y.numpy(), Y.numpy().astype("int32"), pl.Series(Y)])
def test_labels_to_partition_may_be_lists_and_arrays(labels):
    usual, own = (partition(y, "class-prior", clients=3).indices for y in (Y, labels))
    assert all(torch.equal(a, b) for a, b in zip(usual, own, strict=True))


@pytest.mark.parametrize("kind", ["iid", "client-prior"])
def test_a_dataset_is_split_into_subsets_that_hold_each_example_once(kind):
    parts = split(Read(X, Y), clients=4, kind=kind)
    assert sorted(row for part in parts for row in part.indices) == list(range(60))
    usual = split(X, Y, clients=4, kind=kind)
    assert outcome(parts)[0].equal(outcome(usual)[0])


@pytest.mark.parametrize("owners", [np.array, list, pl.Series])
def test_a_column_of_owners_makes_a_client_of_each(owners):
    names = [f"site {row % 3}" for row in range(60)]
    clients = by_owner(X, Y, owners=owners(names))
    assert clients.partition.names == ("site 0", "site 1", "site 2")
    assert torch.equal(clients[1].inputs, X[1::3])


TABLES = {
    "dict": lambda columns: columns,
    "pandas": pd.DataFrame,
    "polars": pl.DataFrame,
    "Hugging Face": datasets.Dataset.from_dict,
}


@pytest.mark.parametrize("table", TABLES)
def test_columns_of_a_table_become_examples(table):
    columns = {
        "age": [31, 64, 47, 50],
        "weight": [70.5, 81.0, 64.5, 90.0],
        "diagnosis": ["flu", "cold", "flu", "well"],
        "hospital": ["north", "south", "north", "south"],
        "stay": [1.5, 2.0, 3.0, 0.5],
    }
    made = TABLES[table](columns)
    both = from_table(made, inputs=["age", "weight"], label="diagnosis", owner="hospital")
    assert both.inputs.tolist() == [[31, 70.5], [64, 81], [47, 64.5], [50, 90]]
    assert both.classes == ("cold", "flu", "well")
    assert both.labels.tolist() == [1, 0, 1, 2]
    assert by_owner(both)[1].labels.tolist() == [0, 2]
    stay = from_table(made, inputs=["age"], label="stay")
    assert stay.labels.is_floating_point()
    assert not stay.classes


def test_a_hugging_face_dataset_of_tensors_becomes_examples():
    table = datasets.Dataset.from_dict({"image": X.tolist(), "label": Y.tolist()})
    examples = from_table(table.with_format("torch"), inputs="image", label="label")
    assert torch.equal(examples.inputs, X)
    assert torch.equal(examples.labels, Y)


def test_a_regression_on_arrays_of_float64_learns_and_is_judged_by_r2():
    wanted = (X @ torch.tensor([1.0, -2.0, 0.5, 0.0, 3.0])).numpy().astype("float64")
    inputs = X.numpy().astype("float64")
    torch.manual_seed(0)
    run = simulate(
        nn.Linear(5, 1),
        split(inputs, wanted, clients=3),
        algorithm=fedlada.algorithm("fedavg", lr=0.1),
        rounds=10,
        evaluate=Evaluation(data=(inputs, wanted)),
    )
    assert run.run()[-1].metrics["test_r2"] > 0.95
    assert run.score == "test_r2"
