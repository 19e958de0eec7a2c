"""A 0/1 outcome: its loss, its metrics, and an AUC by counts that any sites may add up."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from sklearn.metrics import roc_auc_score
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits

from fedlada import Evaluation, LocalTraining
from fedlada.data import Examples
from fedlada.training import BINARY
from fedlada.training.objective import auc, auc_error, auc_sums

GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(200, 3, generator=GENERATOR)
Y = (X[:, 0] + torch.randn(200, generator=GENERATOR) > 0.5).long()
KINDS = (torch.bool, torch.uint8, torch.int32, torch.int64, torch.float32, torch.float64)


def linear() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(3, 1)


@pytest.mark.parametrize("shape", [(200,), (200, 1)])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("batch", [7, 200])
def test_loss_and_accuracy_are_those_of_the_whole_set(kind, shape, batch):
    model, labels = linear(), Y.to(kind).view(shape)
    found = Evaluation(data=(X, labels), objective=BINARY, batch_size=batch)(model)
    logits = model(X).detach()[:, 0]
    loss = binary_cross_entropy_with_logits(logits, Y.float())
    assert found["test_loss"] == pytest.approx(float(loss), rel=1e-5)
    assert found["test_accuracy"] == int(((logits > 0) == (Y > 0)).sum()) / 200
    exact = roc_auc_score(Y, logits)
    assert abs(found["test_auc"] - exact) <= found["test_auc_error"] < 0.005


@pytest.mark.parametrize("kind", KINDS)
def test_training_is_that_of_torchs_loss(kind):
    """With one batch and one step it is one gradient."""
    ours, theirs = linear(), linear()
    train = LocalTraining(steps=1, batch_size=200, loss=BINARY)
    train(ours, (X, Y.to(kind)), torch.optim.SGD(ours.parameters(), lr=1.0))
    optimizer = torch.optim.SGD(theirs.parameters(), lr=1.0)
    binary_cross_entropy_with_logits(theirs(X)[:, 0], Y.float()).backward()
    optimizer.step()
    torch.testing.assert_close(ours.weight, theirs.weight)


scores = st.lists(
    st.tuples(st.floats(-50, 50, width=32) | st.sampled_from([0.0, 1e-4, -3.0]), st.booleans()),
    min_size=2,
    max_size=60,
)


@settings(deadline=None)
@given(scores, st.integers(1, 5))
def test_the_error_of_the_auc_is_within_what_it_says_over_any_sites(pairs, sites):
    logits = torch.tensor([score for score, _ in pairs])
    labels = torch.tensor([outcome for _, outcome in pairs])
    sums = [
        auc_sums(logits[site::sites], labels[site::sites])
        for site in range(min(sites, len(labels)))
    ]
    negative, positive = (sum(parts) for parts in zip(*sums, strict=True))
    both = 0 < int(labels.sum()) < len(labels)
    assert math.isnan(auc(negative, positive)) != both
    if both:
        exact = roc_auc_score(labels, logits)
        assert abs(auc(negative, positive) - exact) <= auc_error(negative, positive) + 1e-12


@pytest.mark.parametrize("spread", [0.3, 1.0, 3.0, 10.0])
@pytest.mark.parametrize("centre", [-6.0, 0.0, 2.0])
def test_the_error_is_small_for_scores_as_models_have_them(spread, centre):
    rng = np.random.default_rng(0)
    labels = torch.tensor(rng.random(5000) < 0.2)
    logits = torch.tensor(centre + spread * rng.normal(size=5000)) + spread * labels
    assert abs(auc(*auc_sums(logits, labels)) - roc_auc_score(labels, logits)) < 0.002


def test_what_a_constant_model_and_a_single_class_have():
    constant = nn.Linear(3, 1)
    nn.init.zeros_(constant.weight)
    judge = Evaluation(data=(X, Y), objective=BINARY)
    assert judge(constant)["test_auc"] == 0.5
    assert judge(constant)["test_auc_error"] == 0.5
    assert math.isnan(Evaluation(data=(X, 0 * Y), objective=BINARY)(linear())["test_auc"])
    assert judge.score == "test_auc"


def test_several_outputs_are_refused():
    with pytest.raises(ValueError, match=r"one output, a logit: .*nn\.Linear\(\.\.\., 1\)"):
        Evaluation(data=Examples(X, Y), objective=BINARY)(nn.Linear(3, 2))
