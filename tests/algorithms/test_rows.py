"""Laws of the second moment by rows."""

import pytest
import torch
from torch import nn

from fedlada import Algorithm, FedladaError, algorithm, simulate
from fedlada.algorithms.local import SGD


def run(model, name, *, rounds=4, **settings):
    generator = torch.Generator().manual_seed(0)
    inputs = [torch.randn(20, 6, generator=generator) for _ in range(3)]
    clients = [(own, own[:, :1] * (1 + i)) for i, own in enumerate(inputs)]
    chosen = algorithm(name, lr=0.01, **settings)
    simulation = simulate(model, clients, train=three_steps, algorithm=chosen, rounds=rounds)
    simulation.run()
    return simulation.state.vectors


def three_steps(model, data, optimizer):
    for _ in range(3):
        optimizer.zero_grad()
        (model(data[0]) - data[1]).square().mean().backward()
        optimizer.step()


class Weights(nn.Module):
    """A linear model, its weights in one dimension or in one row."""

    def __init__(self, shape):
        super().__init__()
        self.w = nn.Parameter(torch.linspace(-1, 1, 6).reshape(shape))

    def forward(self, x):
        return x @ self.w.reshape(6, 1)


class SaysItsRows(SGD):
    """A rule that sends one number per row, and none that a second moment would be."""

    up = ("size_rows",)


def test_only_a_moment_may_be_sent_up_in_few_numbers():
    with pytest.raises(FedladaError, match=r"size_rows is declared in 'up'.*in 'moments'"):
        Algorithm(SaysItsRows())


def test_of_one_dimension_it_is_amsgrad():
    for settings in ({"weight_decay": 0.1}, {"weight_decay": 0.1, "decoupled_weight_decay": True}):
        rows = run(Weights(6), "fedlada-rows", **settings)
        elements = run(Weights(6), "fedlada", **settings)
        torch.testing.assert_close(rows.x.tensors, elements.x.tensors)
        torch.testing.assert_close(rows.v_rows.tensors, elements.v.tensors)


def test_of_one_element_per_row_it_is_amsgrad():
    rows, elements = (run(Weights((6, 1)), name) for name in ("fedlada-rows", "fedlada"))
    torch.testing.assert_close(rows.x.tensors, elements.x.tensors)


def test_v_is_one_number_per_row_and_rises_by_the_mean_square():
    before = run(Weights((2, 3)), "fedlada-rows", rounds=0).v_rows.tensors[0]
    after = run(Weights((2, 3)), "fedlada-rows", rounds=1, betas=(0.9, 0.0)).v_rows.tensors[0]
    assert before.shape == after.shape == (2, 1)
    elements = run(Weights((2, 3)), "fedlada", rounds=1, betas=(0.9, 0.0)).v.tensors[0]
    # A maximum of means is at most the mean of maxima; the two walks are nearly the same.
    assert bool((after > before).all())
    assert bool((after <= elements.mean(1, keepdim=True) * 1.05).all())


def test_it_sends_what_fedcm_sends_and_a_few_numbers():
    assert algorithm("fedlada-rows").traffic == algorithm("fedcm").traffic
