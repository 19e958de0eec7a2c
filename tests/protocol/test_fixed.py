"""Laws of the fixed-point codec: sums are exact in any order and tree, and nothing is cut."""

import math

import pytest
import torch
from hypothesis import given, settings, strategies as st

from fedlada.algorithms import Vector, Vectors
from fedlada.errors import FedladaError
from fedlada.protocol.codecs import Codecs
from fedlada.protocol.codecs.fixed import STEP, Fixed, longest
from fedlada.protocol.manifest import Entry
from fedlada.protocol.wire import receive, send
from fedlada.server.aggregate.mean import Mean

FIXED = Fixed()


def layout(vector):
    return [Entry("", str(t.dtype), list(t.shape)) for t in vector]


def through(vector):
    return FIXED.decode(FIXED.encode(vector, seed=0), layout(vector))


def drawn(seed, length, kind=torch.float32):
    """Tensors of three shapes, together of this length."""
    generator = torch.Generator().manual_seed(seed)
    vector = Vector(torch.randn(s, generator=generator).to(kind) for s in ((5, 3), (), (40,)))
    return vector * (length / vector.norm())


def whole(vector):
    """The multiples of the step, as Python's integers."""
    return [int(n) for t in vector for n in (t.double() / STEP).reshape(-1)]


@given(seed=st.integers(0, 10**6), length=st.floats(1e-9, 0.9999), wide=st.booleans())
@settings(max_examples=50, deadline=None)
def test_a_number_is_off_by_at_most_half_a_step_and_comes_back_as_itself_the_second_time(
    seed, length, wide
):
    vector = drawn(seed, length, torch.float64 if wide else torch.float32)
    once = through(vector)
    pairs = list(zip(once, vector, strict=True))
    assert all((a.shape, a.dtype) == (b.shape, b.dtype) for a, b in pairs)
    assert all(bool(((a - b).abs() <= STEP / 2).all()) for a, b in pairs)
    assert through(once).equal(once)


@given(
    seed=st.integers(0, 10**6),
    count=st.sampled_from([1, 3, 1000, 100_000]),
    alike=st.booleans(),
)
@settings(max_examples=40, deadline=None)
def test_what_is_decoded_is_never_longer_than_1(seed, count, alike):
    """Rounding alone would make a vector of equal numbers longer than it was."""
    t = torch.ones(count) if alike else torch.randn(count).add_(seed % 7)
    vector = Vector([t / t.double().norm()])
    square = sum(n * n for n in whole(through(vector)))
    assert square <= 2**48
    assert math.sqrt(square) * STEP >= longest(count) - math.sqrt(count) * STEP


@given(data=st.data(), clients=st.integers(1, 12))
@settings(max_examples=50, deadline=None)
def test_sums_are_integers_and_equal_in_any_order_and_tree(data, clients):
    vectors = [through(drawn(seed, 1.0)) for seed in range(clients)]
    exact = [sum(column) for column in zip(*map(whole, vectors), strict=True)]
    means = []
    for vector in data.draw(st.permutations(vectors)):
        leaf = Mean()
        leaf.fold(Vectors(delta=vector))
        means.append(leaf)
    while len(means) > 1:
        first = means.pop(data.draw(st.integers(0, len(means) - 1)))
        means[data.draw(st.integers(0, len(means) - 1))].merge(first)
    assert whole(means[0].sums().delta) == exact
    # The same modulo 2^32, where masks are added.
    words = sum(FIXED.encode(v, seed=0).view(torch.int32).long() for v in vectors) % 2**32
    assert [n - 2**32 if n >= 2**31 else n for n in words.tolist()] == exact


@pytest.mark.parametrize("length", [1.001, 3.0, 1e30, math.inf, math.nan])
def test_a_vector_beyond_the_scale_is_an_error_where_it_is_encoded(length):
    vector = Vector([torch.zeros(10)])
    vector.tensors[0][3] = length
    with pytest.raises(FedladaError, match="at most 1 long; divide by a public length"):
        send(Vectors(delta=vector), Codecs(up={"*": "fixed"}), "up", seed=0)


def test_half_precision_has_no_room_for_the_bits():
    with pytest.raises(FedladaError, match="float16 for its 25 bits; keep the parameters in float"):
        FIXED.encode(Vector([torch.ones(1, dtype=torch.float16)]), seed=0)


@given(content=st.binary(min_size=24, max_size=24))
def test_any_bytes_of_the_right_length_are_finite_numbers(content):
    payload = torch.frombuffer(bytearray(content), dtype=torch.uint8)
    like = Vector([torch.zeros(2, 3)])
    assert math.isfinite(
        receive("delta", payload, layout(like), Codecs(up={"*": "fixed"}), "up").norm()
    )


def test_no_vector_and_a_vector_of_zeros_are_sent():
    for vector in (Vector([]), Vector([torch.zeros(3), torch.zeros(0)])):
        assert through(vector).equal(vector)
        assert FIXED.encode(vector, seed=0).numel() == FIXED.size(layout(vector))


def test_a_vector_in_another_memory_layout_is_sent_in_the_order_of_its_indices():
    dense = drawn(1, 0.5).tensors[0]
    assert through(Vector([dense.t().contiguous().t()])).equal(through(Vector([dense])))
