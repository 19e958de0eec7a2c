"""A loss compares each output with its own label, whatever shapes a model and a column have."""

import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional

from fedlada import FedladaError, LocalTraining
from fedlada.privacy import PrivateTraining
from fedlada.training.pairing import paired_loss

GENERATOR = torch.Generator().manual_seed(0)
OUTPUTS = torch.randn(7, generator=GENERATOR)
NUMBERS = torch.randn(7, generator=GENERATOR)
OUTCOMES = (NUMBERS > 0).float()

LOSSES = {
    "mse_loss": (functional.mse_loss, NUMBERS),
    "by name": (lambda o, y: functional.mse_loss(input=o, target=y), NUMBERS),
    "HuberLoss": (nn.HuberLoss(), NUMBERS),
    "l1_loss": (functional.l1_loss, NUMBERS),
    "PoissonNLLLoss": (nn.PoissonNLLLoss(), NUMBERS.abs()),
    "a difference": (lambda o, y: (o - y).square().mean(), NUMBERS),
    "the other way round": (lambda o, y: (y - o).abs().mean(), NUMBERS),
    "after a function": (lambda o, y: (o.exp() - y).abs().mean(), NUMBERS),
    "BCEWithLogitsLoss": (nn.BCEWithLogitsLoss(), OUTCOMES),
    "binary cross-entropy": (functional.binary_cross_entropy_with_logits, OUTCOMES),
    "of its own": (lambda o, y: functional.mse_loss(o.flatten(), y.flatten()), NUMBERS),
}
SHAPES = [((7, 1), (7,)), ((7,), (7, 1)), ((7,), (7,)), ((7, 1), (7, 1))]


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize(("of_outputs", "of_labels"), SHAPES)
def test_a_loss_is_that_of_flat_outputs_and_labels(name, of_outputs, of_labels):
    loss, labels = LOSSES[name]
    wanted = loss(OUTPUTS.requires_grad_(), labels)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = paired_loss(loss, OUTPUTS.view(of_outputs), labels.view(of_labels))
    torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("loss", [nn.BCEWithLogitsLoss(), nn.BCEWithLogitsLoss(reduction="sum")])
@pytest.mark.parametrize("kind", [torch.uint8, torch.int32, torch.int64, torch.bool, torch.float64])
def test_outcomes_may_be_of_any_type(loss, kind):
    found = paired_loss(loss, OUTPUTS.view(7, 1), OUTCOMES.to(kind))
    torch.testing.assert_close(found, loss(OUTPUTS, OUTCOMES))


def test_a_loss_that_compares_pairs_on_purpose_is_left_alone():
    def ranking(outputs, labels):
        order = torch.sign(labels[:, None] - labels)
        return torch.relu(1 - (outputs - outputs.T) * order).mean()

    outputs = OUTPUTS.view(7, 1).requires_grad_()
    assert paired_loss(ranking, outputs, NUMBERS) == ranking(outputs, NUMBERS)


@pytest.mark.parametrize("kind", [LocalTraining, PrivateTraining])
@pytest.mark.parametrize("loss", [functional.mse_loss, nn.HuberLoss()])
def test_a_regression_learns_with_every_loss(kind, loss):
    """With a broadcast loss it learns the mean alone."""
    inputs = torch.randn(80, 3, generator=GENERATOR)
    labels = inputs @ torch.tensor([1.0, -2.0, 3.0])
    model = nn.Linear(3, 1)
    private = {"noise": 0.0, "clip": 100.0, "seeded": True}
    train = kind(
        epochs=40, batch_size=20, loss=loss, **(private if kind is PrivateTraining else {})
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        train(model, (inputs, labels), torch.optim.SGD(model.parameters(), lr=0.1))
    left = (model(inputs)[:, 0] - labels).square().mean() / labels.square().mean()
    assert left < 0.01


@pytest.mark.parametrize("loss", [functional.cross_entropy, nn.CrossEntropyLoss()])
def test_classes_with_one_output_are_refused_and_no_probabilities(loss):
    """A column of outputs and a column of classes have one shape, which torch takes for others."""
    data = (torch.randn(7, 3, generator=GENERATOR), OUTCOMES.long())
    optimizer = torch.optim.SGD((model := nn.Linear(3, 1)).parameters(), lr=0.1)
    with pytest.raises(FedladaError, match="one output for each class"):
        LocalTraining(steps=1, loss=loss)(model, data, optimizer)
