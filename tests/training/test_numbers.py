"""Values with which nothing can be computed are named: client, row, column, and what to do."""

import math
import re
import warnings

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import fedlada
from fedlada import Evaluation, LocalTraining, TrainingError, simulate
from fedlada.data import ClientData, Examples, by_owner, standardise
from fedlada.training import BINARY

GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(30, 3, generator=GENERATOR)
Y = X @ torch.tensor([1.0, -1.0, 2.0])
NAN = float("nan")


def broken(row, column, value):
    inputs = X.clone()
    inputs[row, column] = value
    return inputs


def run(data, **settings):
    train = settings.pop("train", LocalTraining(epochs=1, batch_size=10))
    usual = {"algorithm": "fedavg", "lr": 0.05, "rounds": 2, "quiet": True}
    return simulate(lambda: nn.Linear(3, 1), data, train=train, **usual | settings)


FORMS = [lambda x, y: (x, y), lambda x, y: (x.numpy(), y.numpy()), TensorDataset, ClientData]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("value", [NAN, float("inf")])
def test_one_broken_cell_is_named_with_its_site_row_and_column(form, value):
    """Row 17 is not in the first batch of ten."""
    sites = {"Ulm": form(X, Y), "Graz": form(broken(17, 2, value), Y)}
    with pytest.raises(TrainingError) as raised:
        run(sites).run()
    said = rf"client 1 \(Graz\), round 1: inputs have {value:g} in row 17, column 2\. Correct"
    assert re.match(said, str(raised.value))


def test_a_column_has_the_name_that_it_has_in_its_table():
    table = Examples(broken(4, 1, NAN), Y, owners=["b", "a"] * 15, columns=("age", "crp", "los"))
    with pytest.raises(TrainingError, match=r"client 1 \(b\).* row 2, column 1 \(crp\)"):
        run(by_owner(table)).run()


def test_a_broken_label_and_a_broken_pixel_are_named():
    labels = Y.clone()
    labels[[3, 5]] = NAN
    with pytest.raises(TrainingError, match="labels have nan in row 3, and 1 other rows"):
        run([(X, labels)]).run()
    images = torch.zeros(30, 1, 3, 3)
    images[9, 0, 2, 1] = NAN
    model = nn.Sequential(nn.Flatten(), nn.Linear(9, 1))
    with pytest.raises(TrainingError, match=r"nan in row 9 at \[0, 2, 1\]"):
        simulate(model, [(images, Y)], rounds=1, quiet=True).run()


def test_an_evaluation_names_them_too():
    with pytest.raises(fedlada.FedladaError, match="inputs have nan in row 17, column 0"):
        Evaluation(data=(broken(17, 0, NAN), Y))(nn.Linear(3, 1))
    outcomes = (broken(17, 0, NAN), Y > 0)
    with pytest.raises(fedlada.FedladaError, match=r"in row 17, column 0\. Correct"):
        Evaluation(data=outcomes, objective=BINARY)(nn.Linear(3, 1))


@pytest.mark.filterwarnings("ignore:the guard stepped in")
@pytest.mark.parametrize(("middle", "scale", "said"), [(0, 5e4, r"5e\+04"), (60, 10.0, "6.")])
def test_an_unscaled_column_is_named_when_training_diverges_and_the_advice_cures_it(
    middle, scale, said
):
    """Such as an income, and an age in years."""
    scaled = X * torch.tensor([1.0, scale, 1.0]) + torch.tensor([0.0, middle, 0.0])
    sites = {"Ulm": (scaled, Y), "Graz": (scaled, Y)}
    with (
        pytest.warns(UserWarning, match=rf"client \d \(\w+\): .*column 1 .* about {said}"),
        pytest.raises(fedlada.FedladaError, match="none of 2 rounds"),
    ):
        run(sites, train=LocalTraining(epochs=5, batch_size=10)).run()
    prepare = standardise(sites)
    train = LocalTraining(epochs=5, batch_size=10, prepare=prepare)
    judge = Evaluation(data=(scaled, Y), prepare=prepare)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        *_, last = run(sites, train=train, rounds=10, evaluate=judge)
    assert last.metrics["test_r2"] > 0.9


HOLES = (broken(17, 2, NAN) * torch.tensor([1.0, 5e4, 1.0]), Y)
PREPARED = standardise([HOLES], missing="mean")


@pytest.mark.filterwarnings("ignore:the guard stepped in")
@pytest.mark.parametrize(("data", "prepare"), [((X, Y), None), (HOLES, PREPARED)])
def test_a_rate_that_is_too_large_names_no_column_and_no_row_that_is_prepared(data, prepare):
    train = LocalTraining(epochs=1, batch_size=10, prepare=prepare)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with pytest.raises(fedlada.FedladaError, match="none of 2 rounds"):
            run([data], lr=1e30, train=train).run()
    assert not [w for w in caught if "column" in str(w.message)]


def test_an_evaluation_of_a_model_that_diverged_blames_no_row_that_is_prepared():
    model = nn.Linear(3, 1)
    nn.init.constant_(model.weight, float("inf"))
    assert not math.isfinite(Evaluation(data=HOLES, prepare=PREPARED)(model)["test_mse"])


def test_outcomes_coded_1_and_2_are_refused_in_training_and_in_evaluation():
    outcomes = (Y > 0).long() + 1
    with pytest.raises(TrainingError, match=r"labels have 2 in row \d+.*an outcome is 0 or 1"):
        run([(X, outcomes)], train=LocalTraining(loss=BINARY)).run()
    with pytest.raises(fedlada.FedladaError, match="an outcome is 0 or 1"):
        Evaluation(data=(X, outcomes), objective=BINARY)(nn.Linear(3, 1))


def test_outcomes_that_would_be_a_regression_are_said_to_be():
    outcomes = (Y > 0).float()
    with pytest.warns(UserWarning, match="numbers to predict.*loss=fedlada.training.BINARY"):
        run([(X, outcomes)]).run()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run([(X, outcomes)], train=LocalTraining(loss=BINARY)).run()
        run([(X, Y)]).run()
