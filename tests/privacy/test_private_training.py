"""PrivateTraining: what one example can change, whose noise it is, and what is left unchanged."""

import math

import pytest
import torch
from hypothesis import given, settings, strategies as st
from scipy import stats
from torch import nn

import fedlada
from fedlada.privacy import PrivateTraining
from fedlada.privacy.noise import normal, uniform


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3)).double()


def examples(count: int, *, seed: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(count, 5, generator=generator, dtype=torch.float64)
    return inputs, torch.randint(3, (count,), generator=generator)


def gradient(train: PrivateTraining, data: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """The gradient of the first step."""
    model, seen = network(), []

    class See(torch.optim.SGD):
        def step(self, closure):
            closure()
            seen.append(torch.cat([p.grad.flatten() for p in model.parameters()]))

    train(model, data, See(model.parameters(), lr=0.0))
    return seen[0]


@pytest.mark.filterwarnings("ignore:the gradients of 1 examples are not finite")
@settings(max_examples=30, deadline=None)
@given(clip=st.floats(1e-3, 10), scale=st.sampled_from([1e-6, 1.0, 1e6, 1e150, math.inf]))
def test_an_example_adds_no_more_than_the_clip(clip, scale):
    inputs, labels = examples(6)
    inputs[0] *= scale
    whole = PrivateTraining(steps=1, batch_size=6, clip=clip, noise=0.0)
    with_it = gradient(whole, (inputs, labels)) * 6
    without = (
        gradient(
            PrivateTraining(steps=1, batch_size=5, clip=clip, noise=0.0), (inputs[1:], labels[1:])
        )
        * 5
    )
    assert (with_it - without).norm() <= clip * (1 + 1e-9)


def test_without_noise_and_clip_it_is_the_mean_gradient():
    data = examples(20)
    train = PrivateTraining(steps=1, batch_size=20, clip=1e9, noise=0.0)
    model = network()
    nn.functional.cross_entropy(model(data[0]), data[1]).backward()
    plain = torch.cat([p.grad.flatten() for p in model.parameters()])
    torch.testing.assert_close(gradient(train, data), plain)


def test_the_noise_has_the_stated_size():
    data = examples(20)
    train = PrivateTraining(steps=1, batch_size=20, clip=0.5, noise=3.0)
    quiet = gradient(PrivateTraining(steps=1, batch_size=20, clip=0.5, noise=0.0), data)
    noise = torch.cat([gradient(train, data) - quiet for _ in range(100)])
    stated = 3.0 * 0.5 / 20
    assert abs(noise.std() / stated - 1) < 4 / math.sqrt(2 * len(noise))
    assert abs(noise.mean()) < 4 * stated / math.sqrt(len(noise))


def run(**settings) -> torch.Tensor:
    clients = [examples(30, seed=seed) for seed in range(3)]
    train = PrivateTraining(steps=2, batch_size=10, noise=1.0, **settings)
    run = fedlada.simulate(
        network(), clients, algorithm="scaffold", rounds=2, train=train, quiet=True
    )
    run.run()
    return torch.cat([p.flatten() for p in run.model.parameters()])


def test_equal_tasks_have_unlike_noise_unless_it_is_seeded():
    assert not torch.equal(run(), run())
    assert torch.equal(run(seeded=True), run(seeded=True))


def test_batches_are_drawn_example_by_example():
    train = PrivateTraining(steps=400, batch_size=10, noise=1.0)
    sizes = torch.tensor([float(len(rows)) for rows in train.batches(40)])
    variance = 40 * 0.25 * 0.75  # of a binomial distribution
    assert abs(sizes.mean() - 10) < 4 * math.sqrt(variance / 400)
    assert abs(sizes.var() / variance - 1) < 4 * math.sqrt(2 / 400)


def test_normal_numbers_are_normal():
    numbers = normal(torch.empty(30_001, dtype=torch.float64))
    assert stats.kstest(numbers.numpy(), "norm").pvalue > 1e-4
    assert normal(torch.empty(3, 5)).dtype == torch.float32
    assert normal(torch.empty(0, 5)).shape == (0, 5)
    assert uniform(1000).min() > 0
    assert uniform(1000).max() < 1


def test_no_metrics_leave_the_client():
    clients = [examples(30, seed=seed) for seed in range(3)]
    train = PrivateTraining(steps=2, batch_size=10, noise=1.0)
    (record,) = fedlada.simulate(network(), clients, rounds=1, train=train, quiet=True)
    assert record.client_metrics == {}


def test_an_example_without_a_finite_gradient_counts_as_nothing_and_is_mentioned():
    inputs, labels = examples(6)
    inputs[2] = math.nan
    train = PrivateTraining(steps=1, batch_size=6, noise=0.0)
    with pytest.warns(UserWarning, match="gradients of 1 examples are not finite"):
        assert gradient(train, (inputs, labels)).isfinite().all()


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"noise": -1.0}, "noise is -1.0"),
        ({"noise": 1.0, "clip": 0.0}, "clip is 0.0"),
        ({"noise": 1.0, "clip_norm": 1.0}, "leave it out"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings, sentence):
    with pytest.raises(ValueError, match=sentence):
        PrivateTraining(**settings)


def test_batch_norm_is_refused():
    model = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
    train = PrivateTraining(noise=1.0)
    with pytest.raises(ValueError, match="'1' mixes the examples of a batch"):
        train(model, examples(9), torch.optim.SGD(model.parameters(), lr=0.1))
