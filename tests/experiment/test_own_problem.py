"""The example outside the package: own data, model, task and correction, named in a TOML file."""

import json
import shutil
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import pytest

from fedlada.cli import main
from places import ROOT

EXAMPLE = ROOT / "examples" / "own_problem"


@pytest.fixture
def here(done, monkeypatch) -> Path:
    monkeypatch.chdir(done)
    return done


@pytest.fixture(scope="module")
def done(tmp_path_factory) -> Iterator[Path]:
    """The directory in which the example has been run, and which the example can be found in."""
    where = tmp_path_factory.mktemp("own")
    shutil.copytree(EXAMPLE, where / "mine", ignore=shutil.ignore_patterns("__pycache__"))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(where)
        assert "test R²" in fedlada("run", "mine/hospitals.toml")
    yield where
    sys.modules.pop("hospitals", None)


def fedlada(*words: str) -> str:
    """What a command prints; in a process of its own the tests of the documents run it."""
    printed = StringIO()
    with redirect_stdout(printed), pytest.raises(SystemExit) as ended:
        main(words)
    assert not ended.value.code, ended.value.code
    return printed.getvalue()


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


def test_its_correction_takes_part(here):
    words = ("settings.mu=0.0", "federation.rounds=1", "--out", "without")
    fedlada("run", "mine/hospitals.toml", *words)
    line = json.loads((here / "without/records.jsonl").read_text())
    assert line["drift"] != records(here)[0]["drift"]


def test_it_is_compared_reported_and_resumed(here):
    assert "R² on the test split, %" in fedlada("compare", "runs/hospitals")
    fedlada("report", "runs/hospitals")
    text = (here / "runs/hospitals/report/report.md").read_text()
    assert "Mean error in days on the test split" in text
    assert "a report does not import hospitals:load" in text
    assert "ccuracy" not in text
    assert "hospital 01" in fedlada("partition", "mine/hospitals.toml", "--clients", "2")
    assert "is finished" in fedlada("resume", "runs/hospitals")


def test_a_wrong_option_of_its_own_is_a_sentence(here):
    with pytest.raises(SystemExit, match=r"^fedlada: .*did you mean 'model\.width'"):
        main(["run", "mine/hospitals.toml", "model.widht=3", "--out", "wrong"])
