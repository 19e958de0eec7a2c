"""The experiment on linear speedup: exact gradients, exact fits, and no run twice."""

import importlib
import itertools
import json

import pytest
import torch
from torch.nn.functional import binary_cross_entropy_with_logits

from places import ROOT

DESK = ROOT / "experiments" / "desk"
TINY = ("--cohorts", "1", "2", "--steps", "1", "2", "--rounds", "1", "2")


@pytest.fixture
def speedup(monkeypatch):
    monkeypatch.syspath_prepend(str(DESK))
    return importlib.import_module("speedup")


def test_the_gradient_of_the_whole_is_that_of_autograd_and_the_mean_of_the_clients(speedup):
    clients = speedup.problem(0, 0.3)
    everything = speedup.together(clients)
    w = torch.linspace(-2, 2, speedup.FEATURES, dtype=torch.float64, requires_grad=True)
    loss = binary_cross_entropy_with_logits(everything.inputs @ w, everything.labels)
    (loss + speedup.REGULARISER * (w * w / (1 + w * w)).sum()).backward()
    torch.testing.assert_close(everything.gradient(w.detach()), w.grad)
    mean = torch.stack([client.gradient(w.detach()) for client in clients]).mean(0)
    torch.testing.assert_close(mean, w.grad)


def test_the_fit_finds_the_slopes_it_was_given(speedup):
    rows = [
        {"S": s, "K": k, "T": t, "square_z": 3 * s**-0.5 * k**0.25 * t**-1.0}
        for s, k, t in itertools.product((1, 4), (2, 8), (16, 64))
    ]
    found = speedup.fit(rows, "square_z")
    assert [found[name]["slope"] for name in "SKT"] == pytest.approx([-0.5, 0.25, -1.0])
    assert found["SKT"]["slope"] == pytest.approx(-1.25 / 3)
    assert found["SKT"]["low"] < -1.25 / 3 < found["SKT"]["high"]


def test_only_missing_rows_are_computed(speedup, tmp_path, monkeypatch):
    command = ("--out", str(tmp_path), "--settings", "fedlada-eps-0.1", "fedavg", *TINY)
    measured, measure = [], speedup.measure
    monkeypatch.setattr(speedup, "measure", lambda *key: measured.append(key) or measure(*key))
    speedup.main(command)
    table = tmp_path / "speedup.csv"
    whole = table.read_text().splitlines()
    assert len(measured) == len(whole) - 1 == 16
    assert {"fedlada-eps-0.1", "fedavg"} == set(
        json.loads((tmp_path / "speedup.json").read_text())["slopes"]
    )
    assert "slope -1/2" in (tmp_path / "speedup.svg").read_text()

    table.write_text("\n".join(whole[:-1]) + "\n")
    measured.clear()
    speedup.main(command)
    assert [key[1:] for key in measured] == [(2, 2, 2, 0)]
    again = table.read_text().splitlines()
    assert [line.rpartition(",")[0] for line in again] == [x.rpartition(",")[0] for x in whole]
