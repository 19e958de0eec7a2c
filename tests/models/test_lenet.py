import math

import pytest
import torch
from torch.nn.functional import cross_entropy, gelu, relu

from fedlada.models import ACTIVATIONS, SMU, LeNet


def parameters(model):
    return sum(p.numel() for p in model.parameters())


def test_parameter_count_is_that_of_two_convolutions_and_two_linear_layers():
    convolutions = (3 * 25 + 1) * 6 + (6 * 25 + 1) * 16
    linear = (16 * 5 * 5 + 1) * 120 + (120 + 1) * 10
    assert parameters(LeNet()) == convolutions + linear == 52_202


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize(
    ("channels", "size", "classes"), [(3, 32, 100), (1, 28, 10), (3, 64, 200), (1, 16, 2)]
)
def test_logits_and_gradients_for_any_image(activation, channels, size, classes):
    torch.manual_seed(0)
    model = LeNet(classes, channels=channels, size=size, activation=activation)
    logits = model(torch.randn(4, channels, size, size))
    assert logits.shape == (4, classes)
    cross_entropy(logits, torch.tensor([0, 1, 0, 1])).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
    assert not list(model.buffers())


def test_activations_share_parameters_and_differ_in_output():
    torch.manual_seed(0)
    x = torch.randn(2, 3, 32, 32)
    state = LeNet().state_dict()
    outputs = []
    for activation in ACTIVATIONS:
        model = LeNet(activation=activation)
        model.load_state_dict(state)
        outputs.append(model(x))
    assert not torch.allclose(outputs[0], outputs[1])
    assert not torch.allclose(outputs[1], outputs[2])


def test_gelu_is_the_papers_formula():
    w = torch.linspace(-4, 4, 101, dtype=torch.float64)
    inner = math.sqrt(2 / math.pi) * (w + 0.044715 * w**3)
    torch.testing.assert_close(LeNet(activation="gelu").activation(w), w / 2 * (1 + inner.tanh()))


def test_smu_with_the_right_mu_is_exact_gelu():
    x = torch.linspace(-5, 5, 101, dtype=torch.float64)
    torch.testing.assert_close(SMU(1 / math.sqrt(2))(x), gelu(x))


@pytest.mark.parametrize("mu", [0.5, 1.0, 2.0, 50.0])
def test_smu_approaches_relu_as_mu_grows(mu):
    x = torch.linspace(-5, 5, 10_001, dtype=torch.float64)
    assert (SMU(mu)(x) - relu(x)).abs().max() < 0.121 / mu


def test_default_smu_is_as_smooth_as_its_docstring_says():
    x = torch.linspace(-5, 5, 1001, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(SMU()(x).sum(), x, create_graph=True)
    (curvature,) = torch.autograd.grad(slope.sum(), x)
    assert curvature.abs().max() < 2.3


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: LeNet(activation="tanh"), "'tanh'; There are gelu, relu, smu"),
        (lambda: LeNet(size=8), "size is 8; LeNet needs images of at least 16 x 16"),
        (lambda: SMU(0.0), "mu is 0.0; it must be positive"),
    ],
)
def test_wrong_arguments_are_answered_with_the_right_ones(make, sentence):
    with pytest.raises(ValueError, match=sentence):
        make()
