"""What a model is trained for and judged by follows from the labels, unless somebody says."""

import pickle

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, l1_loss, mse_loss

from fedlada import Evaluation, LocalTraining
from fedlada.data import Examples
from fedlada.server.saving.fingerprint import describe
from fedlada.training import CLASSIFICATION, REGRESSION, Metric, Objective

GENERATOR = torch.Generator().manual_seed(0)
INPUTS = torch.randn(70, 3, generator=GENERATOR)
NUMBERS = INPUTS @ torch.tensor([1.0, -2.0, 0.5]) + 0.3 * torch.randn(70, generator=GENERATOR)
CLASSES = (NUMBERS > 0).long()


def linear(outputs):
    torch.manual_seed(0)
    return nn.Linear(3, outputs)


@pytest.mark.parametrize("batch", [1, 7, 70, 1000])
def test_a_regression_reports_mse_and_r2_of_the_whole_set_and_no_accuracy(batch):
    model = linear(1)
    found = Evaluation(data=Examples(INPUTS, NUMBERS), batch_size=batch)(model)
    errors = (model(INPUTS).squeeze(1) - NUMBERS).detach().double()
    spread = NUMBERS.double() - NUMBERS.double().mean()
    assert found.keys() == {"test_mse", "test_r2"}
    assert found["test_mse"] == pytest.approx(float(errors.square().mean()))
    wanted = 1 - float(errors.square().sum() / spread.square().sum())
    assert found["test_r2"] == pytest.approx(wanted)


def test_r2_is_1_for_the_truth_0_for_the_mean_and_unknown_for_equal_labels():
    def r2(outputs, labels):
        return REGRESSION.metrics["r2"].value(*REGRESSION.metrics["r2"].sums(outputs, labels))

    assert r2(NUMBERS, NUMBERS) == 1
    assert r2(NUMBERS.mean().expand(70), NUMBERS) == pytest.approx(0, abs=1e-6)
    assert r2(-NUMBERS, NUMBERS) < 0
    assert r2(NUMBERS, torch.ones(70)) != r2(NUMBERS, torch.ones(70))


@pytest.mark.parametrize("batch", [1, 7, 70, 1000])
def test_a_classification_reports_loss_and_accuracy_of_the_whole_set(batch):
    model = linear(2)
    found = Evaluation(data=Examples(INPUTS, CLASSES), batch_size=batch, split="train")(model)
    assert found.keys() == {"train_loss", "train_accuracy"}
    loss = float(cross_entropy(model(INPUTS), CLASSES).detach())
    assert found["train_loss"] == pytest.approx(loss)
    assert found["train_accuracy"] == int((model(INPUTS).argmax(1) == CLASSES).sum()) / 70


def test_labels_of_a_sequence_count_one_by_one_and_padding_does_not_count():
    labels = CLASSES.view(35, 2).clone()
    labels[3, 1] = -100
    outputs = torch.randn(35, 2, 2, generator=GENERATOR)  # example, class, place
    right = (outputs.argmax(1) == labels).sum()
    metric = CLASSIFICATION.metrics["accuracy"]
    assert metric.value(*metric.sums(outputs, labels)) == int(right) / 69


class Recording(torch.optim.SGD):
    """An optimizer that keeps the gradients it was given."""

    def __init__(self, parameters):
        super().__init__(parameters, lr=0.0)
        self.seen = []

    def step(self, closure=None):
        closure()
        for group in self.param_groups:
            self.seen += [p.grad.clone() for p in group["params"]]


@pytest.mark.parametrize(
    ("labels", "outputs", "given", "wanted"),
    [
        (NUMBERS, 1, {}, lambda o, y: mse_loss(o.squeeze(1), y)),
        (NUMBERS.double(), 1, {}, lambda o, y: mse_loss(o.squeeze(1).double(), y)),
        (CLASSES, 2, {}, cross_entropy),
        (CLASSES, 2, {"loss": CLASSIFICATION}, cross_entropy),
        (NUMBERS, 1, {"loss": lambda o, y: l1_loss(o[:, 0], y)}, lambda o, y: l1_loss(o[:, 0], y)),
        (torch.eye(2)[CLASSES], 2, {"loss": CLASSIFICATION}, cross_entropy),
    ],
)
def test_the_loss_follows_the_labels_unless_one_is_given(labels, outputs, given, wanted):
    model = linear(outputs)
    optimizer = Recording(model.parameters())
    LocalTraining(steps=1, batch_size=70, **given)(model, Examples(INPUTS, labels), optimizer)
    gradients = torch.autograd.grad(wanted(model(INPUTS), labels), model.parameters())
    for found, gradient in zip(optimizer.seen, gradients, strict=True):
        torch.testing.assert_close(found, gradient, rtol=1e-4, atol=1e-5)


def test_the_default_is_described_as_in_0_2_0():
    """Checkpoints hold this description; a run with another is another run."""
    assert describe(LocalTraining())["loss"] == "torch.nn.functional.cross_entropy"
    names = ["is", "steps", "epochs", "batch_size", "clip_norm", "loss", "prepare"]
    assert list(describe(LocalTraining())) == names
    assert CLASSIFICATION.loss is LocalTraining().loss


@pytest.mark.parametrize("objective", [CLASSIFICATION, REGRESSION])
def test_objectives_travel_to_other_processes(objective):
    assert pickle.loads(pickle.dumps(LocalTraining(loss=objective))).loss == objective


def test_what_does_not_fit_is_a_sentence():
    with pytest.raises(ValueError, match="one output for every number"):
        Evaluation(data=Examples(INPUTS, NUMBERS))(linear(2))
    with pytest.raises(ValueError, match="a regression needs floating-point labels"):
        Evaluation(data=Examples(INPUTS, CLASSES))(nn.Sequential(linear(1), nn.Flatten(0)))
    with pytest.raises(ValueError, match="no examples to evaluate"):
        Evaluation(data=Examples(INPUTS[:0], NUMBERS[:0]))(linear(1))
    with pytest.raises(ValueError, match="score is 'r3', which is none of the metrics mae"):
        Objective(name="x", loss=l1_loss, metrics={"mae": Metric(print)}, score="r3")
