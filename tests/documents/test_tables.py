"""The guide's way from a CSV file to a figure by site: short, and equal to pooled data."""

import csv
import re
import statistics

import pytest
import torch
from torch import nn

import fedlada
from fedlada.data import by_owner
from fedlada.training import BINARY
from fedlada.training.objective import auc, auc_sums
from places import ROOT

pytestmark = pytest.mark.documents(seconds=30)

PAGE = ROOT / "docs" / "guide" / "tables.md"


@pytest.fixture(scope="module")
def ran(tmp_path_factory) -> dict:
    """What the page's program leaves behind, and where."""
    where = tmp_path_factory.mktemp("tables")
    programs = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    made_up, program = programs[:2]
    assert len(program.splitlines()) < 40
    names = {"__name__": "page", "where": where, "torch": torch}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(where)
        exec(compile(made_up, "made up", "exec"), names)
        exec(compile(program, "tables.md", "exec"), names)
    return names


def scores(ran, data, run=None) -> torch.Tensor:
    with torch.no_grad():
        return (run or ran["run"]).model(ran["prepare"](data.inputs).float()).flatten()


def exact(scores, outcomes) -> float:
    """The share of pairs of patients that the scores order rightly."""
    below = scores[outcomes == 0][:, None]
    above = scores[outcomes == 1][None]
    return float(((above > below).double() + (above == below).double() / 2).mean())


def test_the_file_has_what_hospitals_have_and_the_figure_has_a_line_for_each(ran):
    with open(ran["where"] / "patients.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["died"] for row in rows} == {"0", "1"}
    assert any(row["platelets"] == "" for row in rows)
    assert {row["hospital"] for row in rows} == set(ran["last"].evaluation_clients)
    assert (ran["where"] / "auc_by_hospital.png").read_bytes().startswith(b"\x89PNG")
    assert all(metrics["auc"] > 0.8 for metrics in ran["last"].evaluation_clients.values())


def test_the_federated_auc_is_that_of_all_scores_together(ran):
    """Each hospital gives its counts, and only their sums are used."""
    held_out = ran["held_out"]
    pooled = exact(scores(ran, held_out), held_out.labels)
    hospitals = by_owner(held_out)
    counts = []
    for number, name in enumerate(hospitals.names):
        data = hospitals[number]
        counts.append(auc_sums(scores(ran, data)[:, None], data.labels))
        alone = exact(scores(ran, data), data.labels)
        assert ran["last"].evaluation_clients[name]["auc"] == pytest.approx(alone, abs=0.005)
    federated = auc(*(sum(parts) for parts in zip(*counts, strict=True)))
    assert federated == pytest.approx(pooled, abs=0.005)
    assert federated == pytest.approx(ran["last"].metrics["test_auc"], rel=1e-6)


def test_the_federated_model_orders_patients_as_well_as_one_of_pooled_rows(ran):
    """The rows of all hospitals are one client, which trains as they do."""
    pooled = fedlada.simulate(
        lambda: nn.Linear(len(ran["table"].columns), 1),
        [ran["training"]],
        algorithm="fedavg",
        lr=0.3,
        rounds=15,
        train=fedlada.LocalTraining(steps=10, prepare=ran["prepare"], loss=BINARY),
        quiet=True,
    )
    pooled.run()
    held_out = ran["held_out"]
    wanted = exact(scores(ran, held_out, pooled), held_out.labels)
    assert exact(scores(ran, held_out), held_out.labels) == pytest.approx(wanted, abs=0.005)


def test_its_columns_are_standardised_as_those_of_all_hospitals_together(ran):
    for column, values in enumerate(ran["training"].inputs.double().T):
        known = values[~values.isnan()].tolist()
        assert ran["prepare"].mean[column] == pytest.approx(statistics.fmean(known), rel=1e-12)
        assert ran["prepare"].std[column] == pytest.approx(statistics.pstdev(known), rel=1e-12)
