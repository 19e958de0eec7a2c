"""The guard's measures and limits, as laws."""

import math
import statistics

import pytest
import torch
from hypothesis import given, settings, strategies as st

import fedlada
from fedlada.algorithms import Round, Vector, Vectors
from fedlada.devices import BLOCK
from fedlada.protocol.messages import Task
from fedlada.server import Guard
from fedlada.server.guard import Accounts, Admission
from fedlada.server.guard.admission import Origins
from fedlada.server.guard.moments import SecondMoment

sizes = st.lists(st.floats(1e-6, 1e6), min_size=5, max_size=15)


@given(sizes, st.lists(st.floats(0, 1e300), max_size=2))
def test_a_minority_moves_the_median_no_further_than_the_majority_reaches(honest, hostile):
    """However large, two of seven and more cannot lift the limit above the largest honest one's."""
    guard = Guard(deviations=0)
    limit = guard.limits(guard.remember({}, {"delta": honest + hostile}))["delta"].high
    assert limit <= max(honest) * guard.slack ** (1 + 4 / len(honest)) * (1 + 1e-9)


@given(sizes, st.floats(1e-3, 1e3))
def test_limits_scale_with_what_is_measured(values, factor):
    guard = Guard()
    limit = guard.limits(guard.remember({}, {"q": values}))["q"]
    scaled = guard.limits(guard.remember({}, {"q": [factor * value for value in values]}))["q"]
    assert math.isclose(scaled.high, factor * limit.high, rel_tol=1e-6)


@given(sizes)
def test_no_reply_within_slack_of_the_median_is_limited(values):
    guard = Guard()
    history = guard.remember({}, {"q": values})
    median = history["q"][0][0]
    assert guard.limits(history)["q"].high >= guard.slack * median


@given(sizes)
@settings(deadline=None)
def test_counts_are_limited_on_both_sides_alike(values):
    guard = Guard()
    history = guard.remember({}, {"lr_sum": values})
    low, high, least, most = guard.limits(history)["lr_sum"]
    median = history["lr_sum"][0][0]
    assert math.isclose(median / low, high / median, rel_tol=1e-9)
    assert math.isclose(low / least, most / high, rel_tol=1e-9)


@given(sizes, st.floats(0.1, 1))
@settings(deadline=None)
def test_clipping_changes_the_limit_and_not_what_is_rejected(values, clip):
    plain, clipped = (
        guard.limits(guard.remember({}, {"delta": values}))["delta"]
        for guard in (Guard(), Guard(clip=clip))
    )
    assert clipped.most == plain.most
    assert math.isclose(clipped.high, clip * statistics.median(values), rel_tol=1e-9)


@pytest.mark.parametrize(
    ("cohort", "rounds"), [(1, 60), (2, 30), (4, 15), (7, 9), (60, 1), (99, 1)]
)
def test_the_history_is_as_short_as_it_can_be(cohort, rounds):
    guard, history = Guard(memory=6), {}
    for round in range(100):
        history = guard.remember(history, {"q": [float(round)] * cohort})
    assert [median for median, _, _ in history["q"]] == list(range(100 - rounds, 100))


@pytest.mark.parametrize("cohort", [1, 2, 5, 10])
def test_levels_follow_the_last_replies_and_counts_a_longer_time(cohort):
    guard, history = Guard(memory=10), {}
    for size in [100.0] * (90 // cohort) + [1.0] * (10 // cohort):
        history = guard.remember(history, {"q": [size] * cohort, "steps": [size] * cohort})
    limits = guard.limits(history)
    assert limits["q"].high < 10
    assert limits["steps"].high > 100


@given(sizes)
def test_what_sets_directions_is_limited_to_slack_medians_however_clients_differ(values):
    guard, seen = Guard(), {"m": values, "m[0]": values, "c": values}
    history = guard.remember({}, seen)
    limits = guard.limits(history, directions=["m"])
    for name in ("m", "m[0]"):
        most = guard.slack ** (1 + 4 / len(values)) * history[name][0][0]
        assert math.isclose(limits[name].high, most, rel_tol=1e-9)
        assert limits[name].high <= limits["c"].high * (1 + 1e-9)
        assert limits[name].most == limits["c"].most


@pytest.mark.parametrize("name", ["sharedmuon", "fedmuon", "fedlion", "fedlalr"])
def test_a_shared_momentum_is_measured_from_that_of_a_client_without_gradients(name):
    """And what is too far from there is brought nearer to there, tensor by tensor."""
    chosen = fedlada.algorithm(name)
    sent, news = vectors(1), vectors(2)
    down = Vectors({name: vectors(3, low=1.0) for name in chosen.down} | {"m_mean": sent})
    task = Task(round=1, seed=0, lr=0.01, vectors=down)
    origins, r = Origins(chosen, task, None), Round(steps=7, lr_sum=0.07)
    known = chosen.part.known(down, r).m
    m = known + news
    assert math.isclose(origins.distance("m", m, r), news.norm(), rel_tol=1e-4)
    parts = [0.5, 1.0, 0.0]
    cut = origins.shortened("m", m, 1.0, r, parts)
    for t, u, v, part in zip(cut, known, news, parts, strict=True):
        torch.testing.assert_close(t, u + part * v)


@pytest.mark.parametrize("name", ["fedavg", "fednova", "fedadam", "sharedmuon", "fedlada"])
def test_strict_cuts_deltas_around_the_last_mean_unless_a_direction_is_shared(name):
    chosen = fedlada.algorithm(name)
    sent, moved = vectors(1, low=1.0), vectors(2)
    down = Vectors(dict.fromkeys(chosen.down, sent))
    task = Task(round=1, seed=0, lr=0.01, vectors=down)
    r = Round(steps=4, lr_sum=0.04)
    admission = Admission(Guard.strict(), chosen, task, [0], history={})
    centre = admission.centre(moved, 0.02)
    known = chosen.part.known(down, Round(steps=4, lr_sum=chosen.span(0.04))).get("delta")
    assert (centre is None) == (known is not None)
    origin = moved * (chosen.span(0.04) / chosen.span(0.02)) if known is None else known
    origins = Origins(chosen, task, None, centre)
    cut = origins.shortened("delta", origin + sent, 0.25, r)
    for t, u, v in zip(cut, origin, sent, strict=True):
        torch.testing.assert_close(t, u + 0.25 * v)
    default = Admission(Guard(), chosen, task, [0], history={})
    assert default.centre(moved, 0.02) is None


def test_where_all_are_zero_everything_else_is_limited():
    guard = Guard()
    assert guard.limits(guard.remember({}, {"q": [0.0, 0.0]}))["q"].high == 0


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"slack": 1.0}, "slack is 1.0; it must be above 1"),
        ({"deviations": -1}, "deviations is -1"),
        ({"widest": 1.5}, "widest is 1.5 and slack is 2.0; widest must be at least slack"),
        ({"clip": 0}, "clip is 0; it must be positive, or None"),
        ({"memory": 0}, "memory is 0; it must be at least 1"),
    ],
)
def test_settings_are_checked(settings, said):
    with pytest.raises(ValueError, match=said):
        Guard(**settings)


def vectors(seed: int, *, low: float = 0.0) -> Vector:
    generator = torch.Generator().manual_seed(seed)
    shapes = [(3, BLOCK // 2), (7,), (2, 1)]  # the first is more than one block
    return Vector(low + torch.rand(shape, generator=generator) for shape in shapes)


def test_a_rise_is_the_sum_of_the_roots_differences_over_that_of_the_roots():
    sent, reply = vectors(1), vectors(2, low=1.0)
    rise = SecondMoment(sent, rising=True).rise(reply)
    rises = [float((a.sqrt() - b.sqrt()).abs().sum()) for a, b in zip(reply, sent, strict=True)]
    roots = [float(t.sqrt().sum()) for t in sent]
    assert math.isclose(rise.whole, sum(rises) / sum(roots), rel_tol=1e-5)
    mean = sum(roots) / sent.numel()
    for own, size, root, t in zip(rise.tensors, rises, roots, sent, strict=True):
        assert math.isclose(own, size / (root + mean * t.numel()), rel_tol=1e-5)
    assert not rise.low


@given(st.sampled_from([math.nan, math.inf, -math.inf]), st.integers(0, BLOCK * 3 // 2 - 1))
@settings(max_examples=30, deadline=None)
def test_a_rise_is_finite_only_if_all_elements_are(value, position):
    sent, reply = vectors(1), vectors(2, low=1.0)
    reply.tensors[0].view(-1)[position] = value
    assert not math.isfinite(SecondMoment(sent, rising=True).rise(reply).whole)


@pytest.mark.parametrize("rising", [True, False])
def test_what_is_too_low_is_raised_to_the_floor(rising):
    sent = vectors(1, low=0.5)
    moment = SecondMoment(sent, rising=rising)
    reply = sent.full_like(-1.0)
    assert moment.rise(reply).low
    assert moment.raised(reply).equal(sent if rising else sent.zeros_like())
    assert not moment.rise(sent).low


@given(st.floats(0, 1))
@settings(max_examples=30, deadline=None)
def test_pulling_back_shortens_the_rise_by_the_factor(factor):
    sent, reply = vectors(1), vectors(2, low=1.0)
    moment = SecondMoment(sent, rising=True)
    pulled = moment.pulled(reply, [factor, 1.0, factor])
    before, after = moment.rise(reply).tensors, moment.rise(pulled).tensors
    assert math.isclose(after[0], factor * before[0], rel_tol=1e-2, abs_tol=1e-3)
    assert math.isclose(after[2], factor * before[2], rel_tol=1e-2, abs_tol=1e-3)
    assert pulled.tensors[1] is reply.tensors[1]
    assert not moment.rise(pulled).low


def test_the_distance_of_vectors_is_the_norm_of_their_difference():
    a, b = vectors(1), vectors(2)
    assert math.isclose(a.distance(b), (a - b).norm(), rel_tol=1e-6)


numbers = st.floats(-1e3, 1e3)


@given(numbers, numbers, st.floats(0, 1e3))
@settings(deadline=None)
def test_an_account_never_leaves_its_limit_by_a_reply(before, along, limit):
    """It ends within the limit, or where it was if it was beyond; what brings it back passes."""
    accounts = Accounts(fedlada.algorithm("scaffold"), Vectors(), {0: before})
    share = accounts.share(0, along, limit)
    assert 0 <= share <= 1
    assert abs(accounts.after(0, share * along)) <= max(limit, abs(before)) * (1 + 1e-9)
    if abs(before + along) <= limit:
        assert share == 1


def test_accounts_add_up_to_the_length_of_the_sum():
    """Whatever clients send along one direction, together their accounts are its length."""
    algorithm, way = fedlada.algorithm("scaffold"), vectors(1)
    contributed, length = {0: 0.0, 1: 0.0, 2: 0.0}, 0.0
    for factors in ((3.0, -1.0, 2.0), (0.5, 0.5, -1.5)):
        server = Vectors(c=way * (1.0 + length))
        accounts = Accounts(algorithm, server, dict(contributed))
        for client, factor in enumerate(factors):
            along = accounts.along(Vectors(c_change=way * factor))
            contributed[client] = accounts.after(client, along)
        length += sum(factors)
    assert math.isclose(sum(contributed.values()), length * way.norm(), rel_tol=1e-5)


@pytest.mark.parametrize("lr_sum", [5e-324, 1e-320, 1e308])
def test_absurd_counts_of_everybody_are_no_error(lr_sum):
    guard = Guard()
    for values in ([lr_sum], [lr_sum, 1.0], [lr_sum] * 5 + [1.0] * 5):
        low, high, *_ = guard.limits(guard.remember({}, {"lr_sum": values}))["lr_sum"]
        assert 0 <= low <= high
