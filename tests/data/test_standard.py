"""Standardising over sites is standardising all rows together, and no row leaves its site."""

import json
from dataclasses import asdict
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import fedlada
from fedlada.data import Moments, Standard, by_owner, moments, split, standardise
from fedlada.server.saving.fingerprint import describe

RNG = np.random.default_rng(0)
CENTRES, SPREADS = np.array([0.0, 60.0, -3.0, 2e5]), np.array([1.0, 12.0, 0.1, 4e4])
X = CENTRES + SPREADS * RNG.normal(size=(90, 4))
Y = RNG.normal(size=90)
SITES = {"a": (X[:5], Y[:5]), "b": (X[5:30], Y[5:30]), "c": (X[30:], Y[30:])}
FORMS = {
    "a dict of arrays": lambda: SITES,
    "a list of tensors": lambda: [tuple(map(torch.tensor, pair)) for pair in SITES.values()],
    "datasets": lambda: [TensorDataset(*map(torch.tensor, pair)) for pair in SITES.values()],
    "loaders": lambda: [
        DataLoader(TensorDataset(*map(torch.tensor, pair)), batch_size=7, shuffle=True)
        for pair in SITES.values()
    ],
    "a split": lambda: split(X, Y, clients=7),
    "owners": lambda: by_owner(X, Y, owners=[f"site {row % 4}" for row in range(90)]),
    "moments": lambda: [moments(pair) for pair in SITES.values()],
}


@pytest.mark.parametrize("form", FORMS)
def test_columns_are_those_of_all_rows_together(form):
    found = standardise(FORMS[form]())(torch.tensor(X))
    wanted = (X - X.mean(0)) / X.std(0)
    assert np.abs(found.numpy() - wanted).max() < 1e-12


@settings(deadline=None)
@given(
    st.lists(st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=8), min_size=1, max_size=5),
    st.sampled_from([0.0, 1e6, -1e9]),
    st.randoms(use_true_random=False),
)
def test_mean_and_std_are_exact_whatever_the_sizes_the_order_and_the_offset(sites, offset, random):
    sites = [[value + offset for value in site] for site in sites]
    known = [moments((torch.tensor(site, dtype=torch.float64)[:, None], site)) for site in sites]
    values = [Fraction(value) for site in sites for value in site]
    mean = sum(values) / len(values)
    variance = sum((value - mean) ** 2 for value in values) / len(values)
    found = standardise(known)
    assert found.mean[0] == pytest.approx(float(mean), rel=1e-15, abs=1e-12)
    rounded = max(1e-18 * offset**2, 1e-30 * float(max(map(abs, values))) ** 2)
    assert found.std[0] ** 2 == pytest.approx(float(variance), rel=1e-9, abs=rounded)
    random.shuffle(known)
    again = standardise(known)
    assert again.mean == found.mean
    assert again.std[0] == pytest.approx(found.std[0], rel=1e-14)


def test_a_site_sends_three_numbers_of_each_column():
    sent = json.loads(json.dumps(asdict(moments(SITES["a"]))))
    assert {name: len(values) for name, values in sent.items()} == {
        "count": 4,
        "total": 4,
        "squares": 4,
    }
    received = Moments(**{name: tuple(values) for name, values in sent.items()})
    others = [moments(SITES[name]) for name in "bc"]
    assert standardise([received, *others]) == standardise(SITES)


def test_a_column_without_spread_becomes_0_and_whole_numbers_become_floats():
    rows = torch.tensor([[1, 7], [3, 7]])
    scaled = standardise([(rows, [0, 1])])(rows)
    assert scaled.tolist() == [[-1, 0], [1, 0]]
    column = torch.full((3, 1), 683.3809885019566, dtype=torch.float64)  # the mean is rounded
    assert standardise([(column, [0, 1, 0])])(column).abs().max() < 1e-9
    assert scaled.dtype == torch.float32


def test_missing_values_are_refused_by_name_or_become_the_mean():
    inputs = X.copy()
    inputs[7, 1] = np.nan
    sites = {"Ulm": (X, Y), "Graz": (inputs, Y)}
    with pytest.raises(fedlada.FedladaError, match="site Graz: inputs have nan in row 7, column 1"):
        standardise(sites)
    found = standardise(sites, missing="mean")
    both = np.concatenate([X, inputs])
    assert np.allclose(found.mean, np.nanmean(both, 0), rtol=1e-14)
    assert np.allclose(found.std, np.nanstd(both, 0), rtol=1e-12)
    assert found(torch.tensor(inputs))[7, 1] == 0
    assert not found(torch.tensor(inputs)).isnan().any()


def test_it_is_a_preparation_of_a_run_that_a_checkpoint_knows(tmp_path):
    prepare = standardise(SITES)
    assert describe(prepare)["mean"] == list(prepare.mean)

    def run(prepare):
        return fedlada.simulate(
            nn.Linear(4, 1),
            SITES,
            rounds=1,
            train=fedlada.LocalTraining(steps=2, prepare=prepare),
            checkpoints=tmp_path,
            quiet=True,
        )

    run(prepare).run()
    with pytest.raises(fedlada.FedladaError, match="not the one that was saved"):
        run(Standard(prepare.mean, tuple(2 * s for s in prepare.std))).run()


@pytest.mark.parametrize(
    ("clients", "said"),
    [
        ([(X, Y), (X[:, :2], Y)], "2, 4"),
        ([(X.reshape(90, 2, 2), Y)], "columns of a table"),
        ([], "no clients"),
        (7, "a int"),
        ([(X[:0], Y[:0])], "client 0: a site has no examples"),
        ([(np.full((3, 1), np.nan), [1, 2, 3])], "client 0: inputs have nan in row 0, column 0"),
    ],
)
def test_what_cannot_be_standardised_is_a_sentence(clients, said):
    with pytest.raises(fedlada.FedladaError, match=said):
        standardise(clients)
    with pytest.raises(fedlada.FedladaError, match="same columns in the same order"):
        standardise(SITES)(torch.zeros(3, 5))
