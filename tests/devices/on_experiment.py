"""An experiment whose file names a device."""

import json
from pathlib import Path

import pytest

from fedlada.cli import main
from fedlada.experiment.run.directory import RunDirectory

FILE = """
algorithm = "fedavg"
device = "cpu"
[data]
dataset = "digits"
clients = 10
[train]
steps = 3
[federation]
cohort = 5
rounds = 2
"""


@pytest.fixture
def file(tmp_path) -> Path:
    path = tmp_path / "run.toml"
    path.write_text(FILE)
    return path


def run(*words: object) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["run", *map(str, words)])
    assert ended.value.code == 0


def losses(directory: Path) -> list[float]:
    return [record["metrics"]["test_loss"] for record in RunDirectory(directory).records()]


def test_a_word_names_the_device_and_a_resumed_run_may_change_it(device, file, tmp_path):
    here, there = tmp_path / "here", tmp_path / "there"
    run(file, "--out", here)
    for out, word in ((tmp_path / "auto", "auto"), (there, device.type)):
        run(file, f"device={word}", "--out", out)
        done = json.loads((out / "done.json").read_text())
        assert done["machine"]["device"] == device.type
        assert losses(out) == pytest.approx(losses(here), abs=1e-4)
    with pytest.warns(UserWarning, match=f"device {device.type} then, cpu now"):
        run(file, "federation.rounds=3", "--out", there)
    assert len({*losses(there)}) == 3, "it trains"


def test_lying_clients_and_their_stamps_follow_the_model(device, file, tmp_path):
    words = ("federation.attack=backdoor", "federation.attackers=0.2", "train.autocast=bfloat16")
    for word in ("cpu", device.type):
        run(file, *words, f"device={word}", "--out", tmp_path / word)
    assert losses(tmp_path / device.type) == pytest.approx(losses(tmp_path / "cpu"), abs=0.01)
