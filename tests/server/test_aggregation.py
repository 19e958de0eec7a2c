"""The mean is exact, so neither order nor grouping of its terms can show in its bits."""

import math
from fractions import Fraction
from itertools import permutations
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor, nn

import fedlada
from fedlada.algorithms import Vector, Vectors
from fedlada.data import ClientData
from fedlada.devices import BLOCK
from fedlada.server import Mean
from fedlada.server.aggregate import exact_sum, mean as means

# Within these magnitudes the sum of any float32 numbers is exact (see aggregate/mean.py).
numbers = st.floats(2.0**-24, 2.0**20, width=32).flatmap(lambda v: st.sampled_from([v, -v, 0.0]))
rows = st.lists(st.lists(numbers, min_size=3, max_size=3), min_size=1, max_size=12)


def vectors(values: Tensor) -> Vectors:
    return Vectors(delta=Vector([values[:1], values[1:].view(1, -1)]))


def mean_of(terms: list[Tensor], weights: list[float]) -> Mean:
    mean = Mean()
    for values, weight in zip(terms, weights, strict=True):
        mean.fold(vectors(values), weight=weight, scalars={"k": weight / 3})
    return mean


def result(mean: Mean) -> tuple[list[float], dict[str, float]]:
    return torch.cat([t.flatten() for t in mean.vectors().delta]).tolist(), mean.scalars()


@given(rows, st.data())
@settings(deadline=None)
def test_any_order_and_any_tree_give_the_same_bits(terms, data):
    tensors = [torch.tensor(row, dtype=torch.float32) for row in terms]
    weights = data.draw(st.lists(st.integers(1, 2**20), min_size=len(terms), max_size=len(terms)))
    expected = result(mean_of(tensors, weights))
    order = data.draw(st.permutations(range(len(terms))))
    leaves = [mean_of([tensors[i]], [weights[i]]) for i in order]
    while len(leaves) > 1:
        i = data.draw(st.integers(0, len(leaves) - 2))
        leaves[i].merge(leaves.pop(i + 1))
    assert result(leaves[0]) == expected


@given(rows, st.data())
@settings(deadline=None)
def test_the_mean_is_the_exact_one_rounded(terms, data):
    weights = data.draw(st.lists(st.integers(1, 2**20), min_size=len(terms), max_size=len(terms)))
    tensors = [torch.tensor(row, dtype=torch.float32) for row in terms]
    found, _ = result(mean_of(tensors, weights))
    for j, value in enumerate(found):
        exact = sum(w * Fraction(t[j].item()) for w, t in zip(weights, tensors, strict=True))
        exact /= sum(weights)
        # The quotient is rounded to float64 and then to float32.
        assert value == torch.tensor(float(exact), dtype=torch.float64).float().item()


@pytest.mark.parametrize("flag", [True, False])
@pytest.mark.parametrize("together", [1, 2, 3, 100])
@pytest.mark.parametrize("smallest", [1.0, 2.0**-40])  # all sums are exact, or next to none is
def test_terms_added_together_and_a_flag_change_no_bit(monkeypatch, flag, together, smallest):
    generator = torch.Generator().manual_seed(0)
    size = 2 * BLOCK + 5
    terms = [torch.randn(size, generator=generator) * smallest**i for i in (0, 1, 0, 1, 0)]
    expected = sum(Fraction(t[-1].item()) * (1 + i) for i, t in enumerate(terms)) / 15

    def found(split: int = 5) -> Tensor:
        mean = mean_of(terms[:split], [1, 2, 3, 4, 5][:split])
        mean.merge(mean_of(terms[split:], [1, 2, 3, 4, 5][split:]))
        return torch.cat([t.flatten() for t in mean.vectors().delta])

    as_set = found()
    assert as_set[-1].item() == torch.tensor(float(expected), dtype=torch.float64).float().item()
    monkeypatch.setattr(means, "TOGETHER", together)
    if not flag:
        monkeypatch.setattr(exact_sum, "_works", lambda threads: False)
    assert torch.equal(found(), as_set)
    assert torch.equal(found(split=2), as_set)


@pytest.mark.parametrize("where", [0, 1, BLOCK // 2, BLOCK - 1])
def test_a_rounded_element_is_never_called_exact(where):
    cpu = torch.device("cpu")
    high, term = torch.ones(2, BLOCK, dtype=torch.float64, device=cpu)
    term[where] = 2.0**-53  # the first that vanishes beside 1
    assert not exact_sum.known_exact(lambda: high + term, cpu)
    term[where] = 2.0**-52
    works = exact_sum._works(torch.get_num_threads())
    assert exact_sum.known_exact(lambda: high + term, cpu) == works
    assert not exact_sum.known_exact(lambda: high + term, torch.device("meta"))


def test_no_flag_that_misses_a_rounding_is_used(monkeypatch):
    for stuck in (0, 1):
        library = SimpleNamespace(feclearexcept=int, fetestexcept=lambda _, stuck=stuck: stuck)
        monkeypatch.setattr(exact_sum, "_library", lambda library=library: library)
        assert not exact_sum._works.__wrapped__(1)


def test_a_sum_with_an_infinite_term_is_nan_in_any_order():
    terms = [torch.tensor([value, 1.0, 1.0]) for value in (1.0, 2.0**-60, torch.inf, 1.0)]
    for order in permutations(terms):
        for together in range(1, 5):
            shares = order[:together], order[together:]
            mean, other = (mean_of(list(share), [1] * len(share)) for share in shares)
            mean.merge(other)
            first, *others = result(mean)[0]
            assert math.isnan(first)
            assert others == [1.0, 1.0]


def test_random_float64_terms_agree_in_every_order():
    generator = torch.Generator().manual_seed(0)
    terms = [torch.randn(1000, generator=generator, dtype=torch.float64) for _ in range(20)]
    expected = result(mean_of(terms, [1] * 20))
    for _ in range(10):
        order = torch.randperm(20, generator=generator).tolist()
        assert result(mean_of([terms[i] for i in order], [1] * 20)) == expected


def test_more_elements_than_a_block_and_any_layout():
    terms = [torch.randn(3, 5, 100, 41, dtype=torch.float64) for _ in range(3)]
    mean = Mean()
    for i, t in enumerate(terms):
        layout = torch.channels_last if i % 2 else torch.contiguous_format
        mean.fold(Vectors(delta=Vector([t.to(memory_format=layout)])))
    torch.testing.assert_close(mean.vectors().delta.tensors[0], sum(terms) / 3)


def test_the_type_of_the_terms_is_kept():
    mean = Mean()
    mean.fold(Vectors(a=Vector([torch.ones(2)]), b=Vector([torch.ones(2, dtype=torch.bfloat16)])))
    assert [mean.vectors()[name].tensors[0].dtype for name in "ab"] == [
        torch.float32,
        torch.bfloat16,
    ]


def test_an_infinite_metric_spoils_only_itself():
    mean = Mean()
    mean.fold(vectors(torch.ones(3)), scalars={"loss": float("inf"), "steps": 2})
    mean.fold(vectors(torch.ones(3)), scalars={"loss": 1.0, "steps": 4})
    assert mean.scalars()["steps"] == 3
    assert mean.scalars()["loss"] != mean.scalars()["loss"]


@pytest.mark.parametrize("weight", [0, -1, float("nan"), float("inf")])
def test_a_weight_must_be_positive_and_finite(weight):
    with pytest.raises(ValueError, match="positive and finite"):
        Mean().fold(vectors(torch.ones(3)), weight=weight)


def test_terms_must_be_alike():
    mean = mean_of([torch.ones(3)], [1])
    with pytest.raises(ValueError, match="this mean is over delta"):
        mean.fold(Vectors(other=Vector([])))
    with pytest.raises(ValueError, match="shape"):
        mean.fold(vectors(torch.ones(4)))
    with pytest.raises(ValueError, match="float64"):
        mean.fold(vectors(torch.ones(3, dtype=torch.float64)))


def test_a_mean_of_nothing_is_an_error():
    with pytest.raises(ValueError, match="at least one term"):
        Mean().vectors()


def test_drift_is_known_for_whatever_is_a_mean():
    class Own:
        """A mean of somebody else's."""

        is_mean = True

        def __init__(self):
            self._mean = Mean()

        def __getattr__(self, name):
            return getattr(self._mean, name)

    model = nn.Linear(8, 3)
    clients = [ClientData(x, x[:, :3].argmax(1)) for x in torch.randn(4, 20, 8)]
    usual, own = (
        fedlada.simulate(model, clients, rounds=1, aggregator=rule).run()[0] for rule in (Mean, Own)
    )
    assert own.drift == usual.drift is not None
