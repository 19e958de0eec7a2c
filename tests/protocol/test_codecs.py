"""Laws of the codecs: their error, their bias, their bytes, and what they do with hostile bytes."""

import math

import pytest
import torch
from hypothesis import given, settings, strategies as st

from fedlada import FedladaError, algorithm, simulate
from fedlada.algorithms import Vector
from fedlada.protocol.codecs import CODECS, PRESETS, Codecs, MalformedReply
from fedlada.protocol.codecs.bits import BLOCK, opened, pack, size_of, unpack
from fedlada.protocol.codecs.rows import CHUNK, chunks_of, vector_of
from fedlada.protocol.manifest import Entry
from fedlada.protocol.wire import receive, send
from fedlada.server.guard import Guard

INTEGERS = {name: int(name[3:]) for name in CODECS if name.startswith("int")}
SUBTRACTIVE = {name: int(name[3:]) for name in CODECS if name.startswith("sub")}
UNBIASED = [*INTEGERS, *SUBTRACTIVE, "eden2"]
LOSSY = [name for name in CODECS if name not in ("exact", "fixed", "masked")]
"""The codecs of vectors of any length; test_fixed.py has those that are at most 1 long."""
SCALES = [1e-45, 1e-38, 1e-20, 1.0, 1e20, 1e30]


def layout(vector):
    return [Entry("", str(t.dtype), list(t.shape)) for t in vector]


def example(scale=1.0, *, seed=0):
    """Tensors of several shapes and types, over several decades."""
    generator = torch.Generator().manual_seed(seed)
    shapes = [(7, 5, 3), (), (1, BLOCK), (3, 200)]
    drawn = [torch.randn(shape, generator=generator) ** 3 for shape in shapes]
    kinds = [torch.float32, torch.float32, torch.float32, torch.float64]
    return Vector((t * scale).to(kind) for t, kind in zip(drawn, kinds, strict=True))


def through(name, vector, seed=0):
    codec = CODECS[name]
    return codec.decode(codec.encode(vector, seed=seed), layout(vector))


def blocks(vector):
    for t in vector:
        yield from torch.split(t.double().reshape(-1), BLOCK)


def flat(vector):
    return torch.cat([t.double().reshape(-1) for t in vector])


@pytest.mark.parametrize("name", LOSSY)
def test_shapes_and_types_come_back_and_the_bytes_are_those_foretold(name):
    for vector in (example(), Vector([])):
        payload = CODECS[name].encode(vector, seed=1)
        assert payload.dtype == torch.uint8
        assert CODECS[name].fits(payload.numel(), layout(vector))
        back = CODECS[name].decode(payload, layout(vector))
        assert [(t.shape, t.dtype) for t in back] == [(t.shape, t.dtype) for t in vector]


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", [*INTEGERS, *SUBTRACTIVE])
def test_an_integer_is_off_by_less_than_a_level_of_its_block_or_half_of_one(name, scale):
    vector, levels = example(scale), 2 ** (int(name[3:]) - 1) - 1
    most = 0.5 if name in SUBTRACTIVE else 1.0
    for own, back in zip(blocks(vector), blocks(through(name, vector)), strict=True):
        largest = float(own.abs().max())
        rounding = 2e-6 * largest + 2e-45
        assert float((own - back).abs().max()) <= most * largest / levels + rounding


@pytest.mark.parametrize("bits", SUBTRACTIVE.values())
def test_subtracting_what_was_added_halves_the_error_for_the_same_bytes(bits):
    vector = Vector([torch.randn(400 * BLOCK, generator=torch.Generator().manual_seed(1))])
    pair = [f"{kind}{bits}" for kind in ("sub", "int")]
    sent, kept = (CODECS[name].encode(vector, seed=0).numel() for name in pair)
    assert sent <= 1.01 * kept
    wrong, before = (through(name, vector).distance(vector) ** 2 for name in pair)
    assert wrong <= 0.6 * before


@pytest.mark.parametrize("large", [1e-2, -1e-2, 1e10])
@pytest.mark.parametrize("name", LOSSY)
def test_a_zero_beside_large_numbers_stays_as_near_to_zero_as_the_codec_promises(name, large):
    """And what is tiny, negative or positive: one large number may not be read for them."""
    vector = Vector([torch.tensor([1e-16, -1e-16, 0.0, -0.0, 1e-30, 0.0, large, 0.0])])
    own, back = flat(vector), flat(through(name, vector))
    bits = {**INTEGERS, **SUBTRACTIVE}.get(name)
    if name == "bf16":
        most = own.abs() / 256
    elif bits is not None:
        most = torch.full_like(own, abs(large) / (2 ** (bits - 1) - 1) * 1.000002)
    else:  # no number of a row is off by more than the row is long
        most = torch.full_like(own, abs(large) / 2)
    assert bool(((own - back).abs() <= most).all())


@pytest.mark.parametrize("name", ["log8", "log4", "int7", ""])
def test_a_codec_that_is_not_there_is_refused_with_the_names_of_those_that_are(name):
    with pytest.raises(FedladaError, match=rf"no codec '{name}'.*There are bf16, "):
        Codecs.read(f"x={name} | delta=bf16")


@pytest.mark.parametrize("scale", SCALES[1:])
def test_bfloat16_is_off_by_one_part_in_256(scale):
    own, back = flat(example(scale)), flat(through("bf16", example(scale)))
    assert bool(((own - back).abs() <= own.abs() / 256 + 1e-40).all())


@pytest.mark.parametrize("name", UNBIASED)
def test_the_mean_over_many_draws_is_the_number(name):
    assert bias(lambda vector, seed: through(name, vector, seed)) <= 1.3


@pytest.mark.parametrize("name", ["int8", "int4", "sub8", "sub4", "eden2"])
def test_errors_far_apart_are_as_good_as_independent(name):
    """The variance of their sum over several chunks is the sum of their variances."""
    vector = Vector([torch.randn(3 * CHUNK * BLOCK, generator=torch.Generator().manual_seed(1))])
    decoded = torch.stack([flat(through(name, vector, seed)) for seed in range(60)])
    together = float(decoded.sum(1).var() / decoded.var(0).sum())
    assert 0.4 < together < 1.6  # three standard deviations of a variance of 60 draws


def test_rounding_to_nearest_would_be_noticed():
    def nearest(vector, seed):
        levels = 7 / flat(vector).abs().max()
        return Vector((t * levels).round() / levels for t in vector)

    assert bias(nearest) > 100


def bias(code, draws=200):
    """The mean square of the mean error, over what the spread of the draws lets one expect."""
    vector = Vector([torch.randn(2000, generator=torch.Generator().manual_seed(1))])
    decoded = torch.stack([flat(code(vector, seed)) for seed in range(draws)])
    error = decoded.mean(0) - flat(vector)
    return float(error.square().sum() / (decoded.var(0).sum() / draws + 1e-12))


@pytest.mark.parametrize("name", [*INTEGERS, "bf16"])
def test_what_was_decoded_once_is_coded_as_itself_whatever_the_seed(name):
    for scale in SCALES[1:]:  # among subnormal numbers a level can be less than the next number
        once = through(name, example(scale), seed=1)
        assert through(name, once, seed=2).equal(once)


@pytest.mark.parametrize("name", UNBIASED)
def test_seeds_decide_the_bits(name):
    first, same, other = (through(name, example(), seed) for seed in (5, 5, 6))
    assert first.equal(same)
    assert not first.equal(other)


@pytest.mark.parametrize("name", LOSSY)
def test_what_is_not_finite_stays_so(name):
    for wrong in (math.nan, math.inf):
        vector = example()
        vector.tensors[0].view(-1)[0] = wrong
        assert not bool(flat(through(name, vector)).isfinite().all())


@pytest.mark.parametrize("bits", range(2, 9))
def test_packed_codes_come_back(bits):
    codes = torch.randint(2**bits, (3, BLOCK), dtype=torch.uint8)
    payload = torch.zeros(size_of(0, 3, bits), dtype=torch.uint8)
    _, packed = opened(payload, 0, 3, bits)
    pack(codes, bits, packed)
    assert torch.equal(unpack(packed, bits), codes)


@settings(max_examples=200, deadline=None)
@given(name=st.sampled_from(LOSSY), data=st.binary(max_size=3000), keep=st.booleans())
def test_any_bytes_are_a_vector_or_a_malformed_reply(name, data, keep):
    vector = example()
    honest = bytes(CODECS[name].encode(vector, seed=0).tolist())
    data = data + honest[len(data) :] if keep else data
    payload = torch.frombuffer(bytearray(data or b"\0"), dtype=torch.uint8)
    own = Codecs.read(f"| delta={name}")
    try:
        found = receive("delta", payload, layout(vector), own, "up")
    except MalformedReply:
        return
    assert [t.shape for t in found] == [t.shape for t in vector]


def test_a_compressed_payload_that_grows_is_refused_before_it_is_read():
    import zstandard

    bomb = zstandard.ZstdCompressor().compress(bytes(10_000_000))
    vector = example()
    payload = torch.frombuffer(bytearray(bomb), dtype=torch.uint8)
    assert payload.numel() < CODECS["int8"].size(layout(vector))
    with pytest.raises(MalformedReply, match="wrong length of a vector"):
        receive("delta", payload, layout(vector), Codecs.read("| delta=int8"), "up")


@pytest.mark.parametrize("name", ["bf16", "int8", "sub4"])
def test_bytes_behind_a_compressed_payload_are_refused(name):
    vector, own = example(), Codecs.read(f"| delta={name}")
    payload = CODECS[name].encode(vector, seed=0)
    for more in (payload[:1], payload):
        with pytest.raises(MalformedReply):
            receive("delta", torch.cat([payload, more]), layout(vector), own, "up")


def test_another_version_is_refused_and_both_are_named():
    own = CODECS["int4"].version
    with pytest.raises(ValueError, match=rf"version {own + 1} of codec int4, and .* {own};"):
        Codecs.read(f"x=int4/{own + 1}")


def test_vectors_of_one_message_have_random_numbers_of_their_own():
    vector = example()
    parcel = send({"x": vector, "g_a": vector}, Codecs.read("int4"), "down", seed=3)
    assert not parcel.vectors["x"].equal(parcel.vectors["g_a"])


def around_chunks():
    """Tensors that are smaller than a chunk, as large as one, larger, and across two."""
    sizes = [100, CHUNK * BLOCK, CHUNK * BLOCK - BLOCK, CHUNK * BLOCK, 3, 2 * CHUNK * BLOCK + 7]
    kinds = [torch.float32, torch.float32, torch.float32, torch.float64, torch.float32] * 2
    generator = torch.Generator().manual_seed(2)
    drawn = [torch.rand(size, generator=generator) + 0.1 for size in sizes]
    return Vector(t.to(kind) for t, kind in zip(drawn, kinds, strict=False))


def test_rows_that_are_read_and_written_again_are_the_vector():
    vector = around_chunks()
    read = {(own.start, own.stop): rows.clone() for own, rows in chunks_of(vector)}
    again = vector_of(layout(vector), lambda own, room: room.copy_(read.pop((own.start, own.stop))))
    assert again.equal(vector)
    assert not read


@pytest.mark.parametrize("name", LOSSY)
def test_encoding_changes_no_vector(name):
    vector = around_chunks()
    before = vector.clone()
    CODECS[name].encode(vector, seed=0)
    assert vector.equal(before)


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_is_the_codecs_it_names(preset):
    assert Codecs.read(preset) == Codecs.read(PRESETS[preset])
    assert Codecs.read(str(Codecs.read(preset))) == Codecs.read(preset)


def run(codec, **settings):
    """A few rounds of FedCM on a tiny regression, with and without coded messages."""
    generator = torch.Generator().manual_seed(0)
    inputs = [torch.randn(20, 600, generator=generator) for _ in range(4)]
    clients = [(own, own[:, :4] + 0.1 * i) for i, own in enumerate(inputs)]
    torch.manual_seed(0)
    return simulate(
        torch.nn.Linear(600, 4),
        clients,
        algorithm=algorithm("fedcm", lr=0.01, alpha=0.3, weight_decay=0.0),
        cohort=4,
        codec=codec,
        **({"train": still(1.0)} | settings),
    )


def still(weight):
    """Five steps on ``weight`` times the squared error: 0 for a client without any gradient."""

    def train(model, data, optimizer):
        for _ in range(5):
            optimizer.zero_grad()
            loss = weight * (model(data[0]) - data[1]).square().mean()
            loss.backward()
            optimizer.step()

    return train


@pytest.mark.parametrize("guard", [Guard(), None])
def test_the_error_of_a_coded_direction_does_not_come_back_to_the_server(guard):
    first = run("g_a=int4 | delta=int8", rounds=3, guard=guard)
    first.run()
    before = {name: vector.clone() for name, vector in first.state.vectors.items()}
    (record,) = run(
        "g_a=int4 | delta=int8", rounds=4, guard=guard, state=first.state, train=still(0.0)
    ).run()
    expected = before["g_a"] * (5 * record.lr * 0.7)
    after = first.state.vectors
    assert (before["x"] - after.x).distance(expected) <= 1e-5 * expected.norm()


@pytest.mark.parametrize("codec", ["safe", "default", "small"])
def test_a_preset_sends_fewer_bytes_and_stays_close(codec):
    coded, exact = run(codec, rounds=10), run("exact", rounds=10)
    sent, whole = coded.run(), exact.run()
    assert sum(r.bytes_up for r in sent) < sum(r.bytes_up for r in whole)
    apart = coded.state.vectors.x.distance(exact.state.vectors.x)
    moved = exact.state.vectors.x.distance(run("exact", rounds=0).state.vectors.x)
    assert 0 < apart < 0.3 * moved
