"""Branches of a run: one without a codec is the run itself, and none is computed twice."""

import importlib
import json

import pytest

from fedlada.experiment.config.cells import cells
from fedlada.experiment.run.problem import build
from places import ROOT

DESK = ROOT / "experiments" / "desk"
SWEEP = """
name = "branches"
algorithm = "fedlada-rows"
[data]
dataset = "digits"
clients = 4
[model]
name = "mlp"
[train]
steps = 2
[federation]
cohort = 2
[sweep]
federation.codec = ["exact", "default"]
"""
SHORT = ("--at", "2", "--rounds", "3", "--last", "2")


@pytest.fixture
def branches(monkeypatch):
    monkeypatch.syspath_prepend(str(DESK))
    return importlib.import_module("branches")


@pytest.fixture
def sweep(tmp_path):
    (path := tmp_path / "sweep.toml").write_text(SWEEP)
    return path


def test_the_branch_without_a_codec_is_the_rest_of_the_run(branches, sweep):
    config = next(iter(cells(sweep).values()))
    problem = build(config)
    whole, end = branches.run(config, problem, None, codec="exact", rounds=5)
    trunk, state = branches.run(config, problem, None, codec="exact", rounds=2)
    rest, same = branches.run(config, problem, state, codec="exact", rounds=5)
    coded, other = branches.run(config, problem, state, codec="default", rounds=5)
    assert [record.round for record in trunk + rest] == [record.round for record in whole]
    assert state.round == 2
    assert same.vectors.x.equal(end.vectors.x)
    assert not other.vectors.x.equal(end.vectors.x)
    assert [record.cohort for record in coded] == [record.cohort for record in rest]


def test_only_missing_branches_are_computed(branches, sweep, tmp_path, capsys):
    out = tmp_path / "branches.jsonl"
    branches.main([str(sweep), *SHORT, "--out", str(out)])
    first, second = out.read_text().splitlines()
    out.write_text(first + "\n")
    branches.main([str(sweep), *SHORT, "--out", str(out)])
    again = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["codec"] for row in again] == ["exact", "default"]
    same = ("test_accuracy", "train_loss", "bytes_up", "bytes_down")
    assert [again[1][name] for name in same] == [json.loads(second)[name] for name in same]
    capsys.readouterr()
    branches.main(["--table", str(out)])
    assert "| fedlada-rows | default | 1 |" in capsys.readouterr().out


def test_the_table_of_the_readme_is_that_of_the_branches(branches):
    table = branches.table(branches.rows_in(DESK / "results" / "branches.jsonl"))
    assert f"<!-- branches -->\n{table}\n<!-- end -->" in (DESK / "README.md").read_text()
