"""The example outside the package: own data, model, task and correction, named in a TOML file."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "own_problem"


def fedlada(where, *words):
    """A command in a process of its own, which finds the modules as a user's would."""
    return subprocess.run(
        [sys.executable, "-m", "fedlada.cli", *words],
        cwd=where,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )


@pytest.fixture(scope="module")
def done(tmp_path_factory) -> Path:
    where = tmp_path_factory.mktemp("own")
    shutil.copytree(EXAMPLE, where / "mine", ignore=shutil.ignore_patterns("__pycache__"))
    result = fedlada(where, "run", "mine/hospitals.toml")
    assert result.returncode == 0, result.stderr
    assert "test R²" in result.stdout
    return where


def records(where: Path) -> list[dict]:
    lines = (where / "runs/hospitals/records.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def test_it_is_one_small_module_and_one_file():
    assert sorted(path.name for path in EXAMPLE.iterdir() if path.is_file()) == [
        *("hospitals.py", "hospitals.toml")
    ]
    assert len((EXAMPLE / "hospitals.py").read_text().splitlines()) < 80


def test_it_learns_what_can_be_known(done):
    """Noise leaves 93 % of the variance to explain, and no linear model explains more than 83 %."""
    scores = [record["metrics"]["test_r2"] for record in records(done)]
    assert scores[0] < 0.3
    assert scores[-1] > 0.85
    assert set(records(done)[0]["metrics"]) == {"test_days", "test_r2"}
    assert set(records(done)[0]["client_metrics"]) == {"loss"}


def test_its_correction_takes_part(done):
    shutil.copytree(done / "mine", done / "other", dirs_exist_ok=True)
    words = ("settings.mu=0.0", "federation.rounds=1", "--out", "without")
    assert fedlada(done, "run", "other/hospitals.toml", *words).returncode == 0
    line = json.loads((done / "without/records.jsonl").read_text())
    assert line["drift"] != records(done)[0]["drift"]


def test_it_is_compared_reported_and_resumed(done):
    compared = fedlada(done, "compare", "runs/hospitals")
    assert "R² on test, %" in compared.stdout
    assert fedlada(done, "report", "runs/hospitals").returncode == 0
    text = (done / "runs/hospitals/report/report.md").read_text()
    assert "Mean error in days on the test split" in text
    assert "a report does not import hospitals:load" in text
    assert "ccuracy" not in text
    held = fedlada(done, "partition", "mine/hospitals.toml", "--clients", "2")
    assert "hospital 01" in held.stdout
    assert "is finished" in fedlada(done, "resume", "runs/hospitals").stdout


def test_a_wrong_option_of_its_own_is_a_sentence(done):
    wrong = fedlada(done, "run", "mine/hospitals.toml", "model.widht=3", "--out", "wrong")
    assert wrong.returncode != 0
    assert "did you mean 'model.width'" in wrong.stderr
    assert "Traceback" not in wrong.stderr
