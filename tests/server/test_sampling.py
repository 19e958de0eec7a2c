"""Cohorts: seeded, sorted, within range, and of the size promised."""

import pytest
from hypothesis import given, settings, strategies as st
from scipy.stats import chi2
from torch import nn

from fedlada import simulate
from fedlada.server import Bernoulli, FixedSize


@given(st.integers(0, 10), st.integers(0, 100), st.integers(1, 2000), st.data())
@settings(deadline=None)
def test_a_fixed_cohort_has_its_size_and_no_client_twice(seed, round, clients, data):
    size = data.draw(st.integers(1, clients))
    cohort = FixedSize(size).cohort(seed, round, clients)
    assert len(cohort) == len(set(cohort)) == size
    assert cohort == sorted(cohort)
    assert set(cohort) <= set(range(clients))
    assert cohort == FixedSize(size).cohort(seed, round, clients)


@given(st.integers(0, 10), st.integers(0, 100), st.integers(1, 200), st.floats(0.001, 1))
@settings(deadline=None)
def test_a_bernoulli_cohort_is_never_empty_and_has_no_client_twice(seed, round, clients, rate):
    cohort = Bernoulli(rate).cohort(seed, round, clients)
    assert 0 < len(cohort) == len(set(cohort))
    assert cohort == sorted(cohort)
    assert set(cohort) <= set(range(clients))


@pytest.mark.parametrize("sampler", [FixedSize(10), Bernoulli(0.1)])
def test_every_client_is_drawn_about_equally_often(sampler):
    counts = [0] * 100
    for round in range(3000):
        for client in sampler.cohort(0, round, 100):
            counts[client] += 1
    # 300 expected each, standard deviation sqrt(3000 · 0.1 · 0.9) = 16.4
    assert all(abs(count - 300) < 5 * 16.4 for count in counts)


def test_a_million_clients_cost_nothing_to_sample():
    assert len(FixedSize(10).cohort(0, 0, 10**12)) == 10
    assert len(Bernoulli(1e-11).cohort(0, 0, 10**12)) < 100


@pytest.mark.parametrize("sampler", [FixedSize(0), FixedSize(6), Bernoulli(0.0), Bernoulli(1.1)])
def test_what_cannot_be_drawn_is_explained(sampler):
    with pytest.raises(ValueError, match="must be"):
        sampler.cohort(0, 0, 5)


def test_a_round_that_closes_early_favours_no_client():
    """Of eight clients the first five count: each client's share is within chance.

    Each round draws 5 of 20 clients without replacement, so the scaled sum of squares below has
    the chi-square distribution of 19 degrees of freedom. The level is 0.001.
    """
    clients, rounds, taken = 20, 500, 5
    counts = [0] * clients

    def train(model, data, optimizer):
        counts[data[0]] += 1
        model.weight.sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    simulate(
        nn.Linear(1, 1),
        [[client] for client in range(clients)],
        algorithm="fedavg",
        rounds=rounds,
        cohort=8,
        close_after=taken,
        guard=None,
        train=train,
        quiet=True,
    ).run()
    assert sum(counts) == rounds * taken
    share = taken / clients
    variance = rounds * share * (1 - share) * clients / (clients - 1)
    distance = sum((count - rounds * share) ** 2 for count in counts) / variance
    assert distance < chi2.isf(0.001, clients - 1), counts
