import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from fedlada.data import KINDS, partition
from fedlada.data.partitioning import held_out_alike

# As CIFAR-10 has them: ten classes of 5,000.
CIFAR10 = torch.arange(50_000) % 10
DRAWN = [kind for kind in KINDS if kind != "natural"]
DIRICHLET = [kind for kind in DRAWN if kind != "iid"]


def skew(kind, concentration, seed=0):
    """The mean share of a client's largest class."""
    labels = torch.arange(5_000) % 10
    split = partition(labels, kind, clients=20, concentration=concentration, seed=seed).summary()
    return float((split.histograms.amax(dim=1) / split.sizes).mean())


small = st.fixed_dictionaries(
    {
        "labels": st.lists(st.integers(0, 4), min_size=1, max_size=60),
        "share": st.floats(0, 1),
        "concentration": st.sampled_from([1e-3, 0.1, 0.6, 10.0]),
        "seed": st.integers(0, 2**31),
    }
)


@pytest.mark.parametrize("kind", ["iid", "client-prior"])
@settings(max_examples=12, deadline=None)
@given(case=small)
def test_each_sample_goes_to_exactly_one_of_equally_large_clients(kind, case):
    labels = torch.tensor(case["labels"])
    clients = 1 + round(case["share"] * (len(labels) - 1))
    split = partition(
        labels, kind, clients=clients, concentration=case["concentration"], seed=case["seed"]
    )
    assert torch.equal(torch.cat(split.indices).sort().values, torch.arange(len(labels)))
    sizes = [len(rows) for rows in split.indices]
    assert len(sizes) == clients
    assert max(sizes) - min(sizes) <= 1


@settings(max_examples=12, deadline=None)
@given(case=small)
def test_wrapped_clients_are_equally_large_and_repeat_only_whole_classes(case):
    labels = torch.tensor(case["labels"])
    clients = 1 + round(case["share"] * (len(labels) - 1))
    split = partition(
        labels,
        "client-prior-wrapped",
        clients=clients,
        concentration=case["concentration"],
        seed=case["seed"],
    )
    sizes = [len(rows) for rows in split.indices]
    assert sum(sizes) == len(labels)
    assert max(sizes) - min(sizes) <= 1
    uses = torch.cat(split.indices).bincount(minlength=len(labels))
    for label in labels.unique():
        own = uses[labels == label]
        assert own.max() - own.min() <= 1


@pytest.mark.parametrize("concentration", [0.3, 10.0])
def test_class_prior_uses_each_sample_once_and_leaves_no_client_empty(concentration):
    labels = CIFAR10[:10_000]
    split = partition(labels, "class-prior", clients=40, concentration=concentration)
    assert torch.equal(torch.cat(split.indices).sort().values, torch.arange(len(labels)))
    sizes = split.summary().sizes
    assert sizes.min() >= 1
    assert sizes.min() < sizes.max()


def test_class_prior_that_must_leave_a_client_empty_says_what_to_do():
    with pytest.raises(ValueError, match="use fewer clients, a larger concentration"):
        partition(torch.arange(20) % 2, "class-prior", clients=20, concentration=0.01)


@pytest.mark.parametrize("kind", DRAWN)
def test_same_seed_same_partition_other_seed_another(kind):
    first, again, other = (
        partition(CIFAR10[:5_000], kind, clients=10, seed=seed) for seed in (3, 3, 4)
    )
    for rows, same in zip(first.indices, again.indices, strict=True):
        assert rows.dtype == torch.int64
        assert torch.equal(rows, same)
    assert not torch.equal(torch.cat(first.indices), torch.cat(other.indices))


@pytest.mark.parametrize("kind", DRAWN)
def test_global_generators_are_left_alone(kind):
    before = random.getstate(), str(np.random.get_state()), torch.get_rng_state()
    partition(CIFAR10[:1_000], kind, clients=10)
    assert before[:2] == (random.getstate(), str(np.random.get_state()))
    assert torch.equal(before[2], torch.get_rng_state())


@pytest.mark.parametrize("kind", DIRICHLET)
def test_smaller_concentration_is_more_skew(kind):
    assert skew(kind, 0.1) > skew(kind, 0.6) + 0.05 > skew(kind, 10.0) + 0.1


@pytest.mark.parametrize("kind", DIRICHLET)
def test_huge_concentration_is_no_more_skew_than_iid(kind):
    assert skew(kind, 1e6) < skew("iid", 1.0) + 0.01


def test_wrapped_leaves_about_a_twentieth_of_cifar10_unused():
    unused = [
        partition(CIFAR10, "client-prior-wrapped", clients=100, seed=seed).summary().unused
        for seed in range(3)
    ]
    assert sum(unused) / len(unused) / len(CIFAR10) == pytest.approx(0.05, abs=0.015)


def test_wrapped_shares_have_the_moments_of_the_dirichlet_distribution():
    summary = partition(CIFAR10, "client-prior-wrapped", clients=200, concentration=0.6).summary()
    shares = summary.histograms / summary.sizes[:, None]
    # p ~ Dir(c 1) over C classes has variance (1/C)(1 - 1/C) / (cC + 1), and n draws from p
    # add p(1 - p)/n to it.
    square = 0.1**2 + 0.1 * 0.9 / (0.6 * 10 + 1)
    expected = square + (0.1 - square) / 250
    assert float((shares**2).mean()) == pytest.approx(expected, rel=0.1)


@pytest.mark.parametrize(
    ("kind", "concentration"),
    # At 0.01 wrapping uses some samples three times and more.
    [*((kind, 0.6) for kind in DRAWN), ("client-prior-wrapped", 0.01)],
)
def test_summary_accounts_for_every_sample(kind, concentration):
    split = partition(CIFAR10[:2_000], kind, clients=30, concentration=concentration)
    summary = split.summary()
    assert summary.histograms.shape == (30, 10)
    assert torch.equal(summary.histograms.sum(dim=1), summary.sizes)
    assert summary.sizes.tolist() == [len(rows) for rows in split.indices]
    assert int(summary.sizes.sum()) == summary.samples - summary.unused + summary.repeated
    third = CIFAR10[split.indices[3]].bincount(minlength=10)
    assert torch.equal(summary.histograms[3], third)
    assert str(summary).startswith(f"{kind}: 2,000 samples on 30 clients, ")
    assert len(str(summary).splitlines()) == 4


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"kind": "dirichlet"}, "choose one of iid, client-prior, client-prior-wrapped, class-pri"),
        ({"clients": 0}, "clients is 0; it must be from 1 to 20"),
        ({"clients": 21}, "clients is 21; it must be from 1 to 20"),
        ({"concentration": 0.0}, "concentration is 0.0; it must be positive"),
        ({"concentration": float("nan")}, "concentration is nan; it must be positive"),
        ({"seed": -1}, "seed is -1; it must be 0 or more"),
        ({"clients": None}, "clients is None; it must be from 1 to 20"),
        ({"labels": torch.rand(20), "kind": "client-prior"}, "client-prior needs int64"),
        ({"labels": torch.tensor([0, -1]), "kind": "class-prior"}, "numbered from 0"),
        ({"kind": "natural"}, "needs the owner of every sample"),
        ({"kind": "natural", "owners": [1]}, "20 labels and 1 owners"),
        ({"kind": "natural", "owners": range(20)}, "clients is 2, but there are 20 owners"),
        ({"labels": torch.tensor([], dtype=torch.int64)}, "N >= 1"),
    ],
)
def test_wrong_arguments_are_answered_with_the_right_ones(change, sentence):
    arguments = {"labels": torch.arange(20) % 4, "kind": "iid", "clients": 2} | change
    with pytest.raises(ValueError, match=sentence):
        partition(arguments.pop("labels"), arguments.pop("kind"), **arguments)


owned = st.lists(st.tuples(st.sampled_from(["ann", "bob", "cy"]), st.floats(-1, 1)), min_size=1)


@settings(max_examples=30, deadline=None)
@given(rows=owned)
def test_natural_gives_every_owner_exactly_its_rows(rows):
    owners, labels = [owner for owner, _ in rows], torch.tensor([label for _, label in rows])
    split = partition(labels, "natural", owners=owners)
    assert split.names == tuple(sorted(set(owners)))
    for name, held in zip(split.names, split.indices, strict=True):
        assert held.tolist() == [row for row, owner in enumerate(owners) if owner == name]


def test_owners_may_be_numbers_in_a_tensor_and_have_numerical_order():
    split = partition(torch.zeros(4).long(), "natural", owners=torch.tensor([10, 9, 10, 2]))
    assert split.names == ("2", "9", "10")
    assert [rows.tolist() for rows in split.indices] == [[3], [1], [0, 2]]


@pytest.mark.parametrize("kind", ["iid", "natural"])
def test_labels_that_name_no_classes_are_summed_up_by_size_alone(kind):
    given = {"owners": [0, 0, 0, 1]} if kind == "natural" else {"clients": 2}
    summary = partition(torch.rand(4), kind, **given).summary()
    assert summary.histograms is None
    assert summary.sizes.sum() == 4
    assert len(str(summary).splitlines()) == 2


def test_iid_does_not_look_at_labels():
    by_class = partition(CIFAR10[:500], "iid", clients=7, seed=3)
    by_number = partition(torch.rand(500), "iid", clients=7, seed=3)
    for rows, same in zip(by_class.indices, by_number.indices, strict=True):
        assert torch.equal(rows, same)


def test_held_out_samples_go_to_the_clients_that_train_on_their_classes():
    labels = torch.arange(1000) % 10
    among = partition(labels, "client-prior", clients=20, concentration=0.1, seed=1)
    test = torch.arange(400) % 10
    dealt = held_out_alike(test, among, seed=3)
    assert torch.cat(dealt.indices).sort().values.equal(torch.arange(400))
    trained, held = (one.summary().histograms for one in (among, dealt))
    shares = 40 * trained / trained.sum(0)
    assert (held - shares).abs().max() <= 1
    again = held_out_alike(test, among, seed=3)
    assert all(map(torch.equal, dealt.indices, again.indices))
    other = held_out_alike(test, among, seed=4)
    assert not all(map(torch.equal, dealt.indices, other.indices))


def test_held_out_samples_without_classes_are_dealt_by_size_and_owners_get_their_own():
    among = partition(torch.rand(30), "natural", owners=["a"] * 10 + ["b"] * 20)
    sizes = held_out_alike(torch.rand(9), among).summary().sizes
    assert sizes.tolist() == [3, 6]
    own = held_out_alike(torch.rand(4), among, owners=["b", "c", "b", "a"])
    assert [rows.tolist() for rows in own.indices] == [[3], [0, 2]]
    assert own.names == ("a", "b")
