"""A minority of replies, however wild, cannot carry a robust aggregate away."""

import math
import subprocess
import sys
from dataclasses import FrozenInstanceError

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from scipy.stats import trim_mean
from torch import Tensor, nn

import fedlada
from federations import Federation, Point, local_steps, quadratics
from fedlada import ALGORITHMS, Plan
from fedlada.algorithms import Vector, Vectors
from fedlada.data import ClientData
from fedlada.devices import BLOCK
from fedlada.engines import federate
from fedlada.server import Mean
from fedlada.server.aggregate.robust import CenteredClipping, CoordinateMedian, TrimmedMean

RULES = [TrimmedMean(trim=0.2), CoordinateMedian(), CenteredClipping(), CenteredClipping(radius=2)]
every_rule = pytest.mark.parametrize("rule", RULES, ids=str)
law = settings(deadline=None, max_examples=30)
every_dtype = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)

# Within these magnitudes float32 sums are exact (see fedlada.server.aggregate.mean).
numbers = st.floats(2.0**-24, 2.0**20, width=32).flatmap(
    lambda v: st.sampled_from([v, -v, 0.0, -0.0])
)
row = st.lists(numbers, min_size=3, max_size=3)
rows = st.lists(row, min_size=4, max_size=12)
wild = st.lists(st.sampled_from([1e30, -1e30, 1e10, 0.0, -1.0]), min_size=3, max_size=3)
percents = st.integers(0, 24)  # of four replies or more, some are left


def cut_of(percent: int, count: int) -> int:
    return -(-percent * count // 100)


def vectors(values: Tensor) -> Vectors:
    return Vectors(delta=Vector([values[:1], values[1:].view(1, -1)]))


def aggregate(rule, replies: Tensor) -> Tensor:
    held = rule()
    for values in replies:
        held.fold(vectors(values))
    return torch.cat([t.flatten() for t in held.vectors().delta])


def bits(t: Tensor) -> Tensor:
    return t.view({torch.float32: torch.int32, torch.float64: torch.int64}[t.dtype])


def honest_and_all(data, honest: list[list[float]], wild_ones: int) -> tuple[Tensor, Tensor]:
    """The honest replies in float64, and all of them in float32 and any order."""
    others = data.draw(st.lists(wild, min_size=wild_ones, max_size=wild_ones))
    everyone = data.draw(st.permutations(honest + others))
    return torch.tensor(honest, dtype=torch.float64), torch.tensor(everyone)


@given(rows, percents)
@law
def test_the_trimmed_mean_is_scipys(replies, percent):
    values = torch.tensor(replies, dtype=torch.float64)
    cut = cut_of(percent, len(values))
    # scipy rounds the number it cuts down, where we round up.
    expected = trim_mean(values.numpy(), (cut + 0.5) / len(values), axis=0)
    found = aggregate(TrimmedMean(trim=percent / 100), values)
    scale = values.abs().max().item()
    torch.testing.assert_close(found, torch.from_numpy(expected), rtol=0, atol=1e-14 * scale)
    single = aggregate(TrimmedMean(trim=percent / 100), values.float())
    assert torch.equal(single, found.float())  # rounded once


@given(rows)
@law
def test_the_median_is_numpys(replies):
    expected = np.median(np.array(replies), axis=0)
    double = aggregate(CoordinateMedian(), torch.tensor(replies, dtype=torch.float64))
    single = aggregate(CoordinateMedian(), torch.tensor(replies, dtype=torch.float32))
    assert double.tolist() == expected.tolist()
    assert single.tolist() == expected.astype(np.float32).tolist()


@pytest.mark.parametrize("radius", [None, 0.5, 3.0])
@given(rows)
@law
def test_centered_clipping_is_its_equation(radius, replies):
    x = np.array(replies)
    v = np.median(x, axis=0)
    for _ in range(2):
        distances = np.linalg.norm(x - v, axis=1)
        bound = np.median(distances) if radius is None else radius
        scale = np.minimum(1, bound / np.maximum(distances, 1e-300))
        v = v + np.mean((x - v) * scale[:, None], axis=0)
    found = aggregate(CenteredClipping(radius=radius, iterations=2), torch.from_numpy(x))
    torch.testing.assert_close(
        found, torch.from_numpy(v), rtol=0, atol=1e-12 * max(1, np.abs(x).max())
    )


@given(rows)
@law
def test_nothing_trimmed_and_nothing_clipped_are_the_mean(replies):
    values = torch.tensor(replies, dtype=torch.float64)
    atol = 1e-14 * values.abs().max().item()
    for rule in (TrimmedMean(trim=0), CenteredClipping(radius=math.inf)):
        torch.testing.assert_close(aggregate(rule, values), values.mean(0), rtol=0, atol=atol)


@every_rule
@every_dtype
@given(st.data())
@law
def test_the_order_of_arrival_does_not_show_in_the_bits(rule, dtype, data):
    values = torch.tensor(data.draw(rows), dtype=dtype)
    order = data.draw(st.permutations(range(len(values))))
    assert torch.equal(bits(aggregate(rule, values[order])), bits(aggregate(rule, values)))


@every_rule
@every_dtype
def test_random_replies_agree_in_every_order(rule, dtype):
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(11, 1000, generator=generator, dtype=dtype)
    expected = aggregate(rule, values)
    for _ in range(5):
        order = torch.randperm(11, generator=generator)
        assert torch.equal(bits(aggregate(rule, values[order])), bits(expected))


@every_rule
@every_dtype
@given(row, st.integers(4, 60))
@law
def test_of_identical_replies_it_is_that_reply(rule, dtype, reply, count):
    values = (torch.tensor(reply, dtype=torch.float64) / 3).to(dtype)
    found = aggregate(rule, values.expand(count, -1))
    assert found.dtype == dtype
    assert torch.equal(found, values)


@given(rows, st.data())
@law
def test_the_median_stays_among_honest_values_if_they_are_the_majority(honest, data):
    x, everyone = honest_and_all(data, honest, data.draw(st.integers(0, len(honest) - 1)))
    found = aggregate(CoordinateMedian(), everyone).double()
    assert (x.amin(0) <= found).all()
    assert (found <= x.amax(0)).all()


@given(rows, percents, st.data())
@law
def test_the_trimmed_mean_stays_among_honest_values_if_it_trims_as_many_as_are_wild(
    honest, percent, data
):
    few_enough = [f for f in range(len(honest)) if f <= cut_of(percent, len(honest) + f)]
    count = data.draw(st.sampled_from(few_enough))
    x, everyone = honest_and_all(data, honest, count)
    found = aggregate(TrimmedMean(trim=percent / 100), everyone).double()
    assert (x.amin(0) <= found).all()
    assert (found <= x.amax(0)).all()


@pytest.mark.parametrize("iterations", [1, 3])
@given(rows, st.data())
@law
def test_centered_clipping_stays_near_the_honest_mean_however_far_the_others(
    iterations, honest, data
):
    x, everyone = honest_and_all(data, honest, data.draw(st.integers(0, len(honest) - 1)))
    found = aggregate(CenteredClipping(iterations=iterations), everyone).double()
    # The median v and the mean are in the honest box, of diagonal d; the radius is at most the
    # largest honest distance from v, which a step at most doubles: d + d + 2 d + 4 d + ...
    diagonal = (x.amax(0) - x.amin(0)).norm().item()
    rounding = 1e-6 * x.abs().max().item()
    assert (found - x.mean(0)).norm() <= 2**iterations * diagonal + rounding


@given(rows, st.floats(0.1, 100), st.data())
@law
def test_a_given_radius_bounds_the_way_from_the_median(honest, radius, data):
    _, everyone = honest_and_all(data, honest, len(honest) - 1)
    start = aggregate(CoordinateMedian(), everyone).double()
    found = aggregate(CenteredClipping(radius=radius, iterations=2), everyone).double()
    assert (found - start).norm() <= 2 * radius + 1e-6 * start.abs().max()


@every_rule
@given(rows)
@law
def test_second_moments_stay_second_moments(rule, replies):
    """A convex combination of what is not negative is not negative."""
    assert (aggregate(rule, torch.tensor(replies, dtype=torch.float32).abs()) >= 0).all()


@every_rule
def test_more_elements_than_a_block_in_any_layout_each_name_by_itself(rule):
    generator = torch.Generator().manual_seed(0)
    images = [torch.randn(2, 3, 80, 80, generator=generator, dtype=torch.float64) for _ in range(5)]
    assert images[0].numel() > BLOCK
    held = rule()
    for i, t in enumerate(images):
        layout = torch.channels_last if i % 2 == 0 else torch.contiguous_format
        own = t.clone().contiguous(memory_format=layout)
        held.fold(Vectors(delta=Vector([own]), buffers=Vector([]), v=Vector([t[0, 0, 0]])))
    found = held.vectors()
    assert list(found) == ["delta", "buffers", "v"]
    assert len(found.buffers) == 0
    assert found.delta.tensors[0].is_contiguous(memory_format=torch.channels_last)
    flat = rule.combine([Vector([t.flatten()]) for t in images]).tensors[0]
    assert torch.equal(found.delta.tensors[0], flat.view(2, 3, 80, 80))
    alone = rule.combine([Vector([t[0, 0, 0]]) for t in images])
    assert found.v.equal(alone)


@every_rule
def test_the_largest_numbers_do_not_overflow(rule):
    values = torch.tensor([[3e38] * 3, [-3e38] * 3, [-3e38] * 3, [-1e38] * 3])
    assert aggregate(rule, values).isfinite().all()


@every_rule
@every_dtype
def test_the_sign_of_zero_does_not_show_the_order_either(rule, dtype):
    values = torch.tensor([0.0, -0.0, -0.0, 0.0, -0.0], dtype=dtype)[:, None].expand(-1, 99)
    assert bits(aggregate(rule, values)).eq(0).all()
    assert bits(aggregate(rule, values.flip(0))).eq(0).all()


@every_rule
def test_replies_are_left_as_they_were(rule):
    replies = [vectors(torch.randn(3)) for _ in range(5)]
    before = [reply.delta.clone() for reply in replies]
    held = rule()
    for reply in replies:
        held.fold(reply)
    assert held.vectors().delta.equal(held.vectors().delta)
    assert all(reply.delta.equal(old) for reply, old in zip(replies, before, strict=True))


@every_rule
def test_scalars_are_the_medians_of_the_finite_ones(rule):
    held = rule()
    for steps, loss in [(3, math.nan), (1e30, 0.5), (5, math.inf), (4, 1.5)]:
        held.fold(Vectors(), scalars={"steps": steps, "loss": loss, "none": math.nan})
    found = held.scalars()
    assert held.count == 4
    assert (found["steps"], found["loss"]) == (4.5, 1.0)
    assert math.isnan(found["none"])


@every_rule
def test_it_has_the_verbs_of_the_mean_and_every_call_begins_anew(rule):
    verbs, others = (
        {name for name in dir(each) if not name.startswith("_")} for each in (Mean(), rule())
    )
    assert verbs - {"sums"} == others - {"replies"}  # what each alone can tell
    rule().fold(vectors(torch.ones(3)))
    assert rule().count == 0
    with pytest.raises(FrozenInstanceError):
        rule.other = 1


def test_a_share_is_taken_as_it_is_written():
    assert 0.07 * 100 > 7
    values = torch.zeros(100, 3, dtype=torch.float64)
    values[:8] = 1  # 7 are cut, so that one of the ones is left
    assert (aggregate(TrimmedMean(trim=0.07), values) > 0).all()


@every_rule
def test_a_weight_is_refused_with_what_to_do(rule):
    with pytest.raises(ValueError, match=r"weight is 3; .* weighting='uniform'"):
        rule().fold(vectors(torch.ones(3)), weight=3)


@every_rule
def test_replies_must_be_alike(rule):
    held = rule()
    held.fold(vectors(torch.ones(3)))
    for other in (
        Vectors(delta=Vector([torch.ones(1)])),
        vectors(torch.ones(4)),
        vectors(torch.ones(3, dtype=torch.float64)),
    ):
        with pytest.raises(ValueError, match=r"a reply's delta .*; in the first .*float32, 1, 2"):
            held.fold(other)
    with pytest.raises(ValueError, match=r"\['delta', 'buffers'\]; the first has \['delta'\]"):
        held.fold(Vectors(vectors(torch.ones(3)), buffers=Vector([])))
    assert held.count == 1


@every_rule
def test_an_aggregate_of_nothing_is_an_error(rule):
    with pytest.raises(ValueError, match="at least one reply"):
        rule().vectors()


@pytest.mark.parametrize("trim", [0.1, 0.3, 0.4, 0.49])
def test_too_few_replies_to_trim_are_an_error_that_says_how_many_would_do(trim):
    with pytest.raises(ValueError, match=rf"trim is {trim}, which cuts 1 .* of 2 .*lower") as error:
        aggregate(TrimmedMean(trim=trim), torch.ones(2, 3))
    minimum = int(str(error.value).split("minimum=")[1].split()[0])
    for count in range(minimum, minimum + 60):
        assert aggregate(TrimmedMean(trim=trim), torch.ones(count, 3)).tolist() == [1, 1, 1]


@pytest.mark.parametrize("trim", [-0.1, 0.5, math.nan])
def test_trim_must_leave_something(trim):
    with pytest.raises(ValueError, match=rf"trim is {trim}; it must be at least 0 and below 0.5"):
        TrimmedMean(trim=trim)


def test_clipping_needs_a_positive_radius_and_an_iteration():
    for radius in (0, -1.0, math.nan):
        with pytest.raises(ValueError, match=f"radius is {radius}; it must be positive, or None"):
            CenteredClipping(radius=radius)
    with pytest.raises(ValueError, match="iterations is 0; it must be at least 1"):
        CenteredClipping(iterations=0)


class Thinned:
    """An engine of which in some rounds only the first clients answer."""

    def __init__(self, engine, answering):
        self._engine, self._answering = engine, answering
        self.clients, self.keeps, self.commit = engine.clients, engine.keeps, engine.commit

    def exchange(self, task, cohort):
        yield from self._engine.exchange(task, cohort[: self._answering[task.round]])


@pytest.mark.parametrize("rule", ["trimmed-mean", "coordinate-median", "centered-clipping"])
def test_a_round_of_too_few_replies_is_abandoned_and_the_next_goes_on(rule):
    fed = Federation(ALGORITHMS["fedavg"], Point(), quadratics(6), local_steps(2))
    answering = [6, 2, 1, 3, 0, 6]
    engine = Thinned(fed.engine, answering)
    plan = fed.plan(rounds=6, aggregator=rule)
    applied = [record.applied for record in federate(plan, engine, fed.state)]
    least = plan.aggregator().least
    assert applied == [count >= max(least, 1) for count in answering]
    assert fed.state.updates == sum(applied)


@given(st.floats(0, 0.499), st.integers(1, 300))
def test_a_trimmed_mean_knows_how_many_replies_it_needs(trim, count):
    rule = TrimmedMean(trim=trim)
    replies = [Vector([torch.tensor([float(i)])]) for i in range(count)]
    if rule.combines(count):
        rule.combine(replies)
    else:
        assert count < rule.least
        with pytest.raises(ValueError, match="off each end"):
            rule.combine(replies)
    assert rule.combines(rule.least)
    assert rule.least == 1 or not rule.combines(rule.least - 1)


@pytest.mark.parametrize("name", ["trimmed-mean", "coordinate-median", "centered-clipping"])
def test_weights_that_an_aggregator_cannot_take_are_refused_when_the_plan_is_made(name):
    with pytest.raises(ValueError, match=r"weighting is 'examples' .* takes no weights"):
        Plan(aggregator=name, weighting="examples")


@pytest.mark.parametrize("settings", [{"cohort": 2}, {"close_after": 2}])
def test_rounds_that_are_too_small_by_plan_are_refused_when_it_is_made(settings):
    with pytest.raises(ValueError, match=r"a round have 2 replies, .* needs 3"):
        Plan(aggregator="trimmed-mean", **settings)
    Plan(aggregator="mean", **settings)
    Plan(aggregator={"name": "trimmed-mean", "trim": 0.4}, cohort=5)  # 2 + 2 are cut of 5


@pytest.mark.programs
def test_robust_rules_are_there_after_importing_the_library():
    program = "import fedlada; print(fedlada.server.TrimmedMean(trim=0.1))"
    subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)


def test_the_advice_to_a_cohort_that_is_too_small_can_be_followed():
    def clients(count):
        return [ClientData(x, x[:, :3].argmax(1)) for x in torch.randn(count, 20, 8)]

    rule = TrimmedMean(trim=0.4)
    with pytest.raises(ValueError, match=r"a round have 4 replies, .* needs 9: sample more"):
        fedlada.simulate(nn.Linear(8, 3), clients(4), rounds=1, aggregator=rule)
    run = fedlada.simulate(nn.Linear(8, 3), clients(9), rounds=1, aggregator=rule)
    (record,) = run.run()
    assert record.applied
