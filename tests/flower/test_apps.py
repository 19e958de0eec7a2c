"""The shipped apps under ``flwr run`` on Ray, and the way there from plain Flower."""

import difflib
import importlib
import re
import shlex
import sys
import tomllib
from pathlib import Path

import pytest
import torch
from flwr.app import Context, RecordDict
from torch import nn

from fedlada.flower import ServerConfig
from fedlada.flower.loopback import DeploymentError, RaySimulation
from fedlada.flower.memory_grid import MemoryGrid
from flower.quickstart import QUICKSTART, final_accuracy, run_quickstart

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"


@pytest.fixture(scope="module")
def simulation(tmp_path_factory):
    """Two virtual nodes, as many as Flower simulates by default."""
    with RaySimulation(tmp_path_factory.mktemp("ray") / "simulation", nodes=2, at_once=1) as engine:
        yield engine


def test_a_wrong_name_fails_before_round_1_with_the_nearest(simulation):
    with pytest.raises(DeploymentError) as error:
        simulation.run(EXAMPLES / "flower", config={"algorithm": "fedlda"})
    said = re.sub(r"\s+", " ", str(error.value))
    assert "did you mean 'fedlada'" in said
    assert "round 1/" not in said


def test_a_run_in_which_nothing_is_applied_has_failed_and_says_why(simulation):
    config = {"algorithm": "fedavg", "settings": "lr = 1e30", "num-server-rounds": 1}
    with pytest.raises(DeploymentError, match="finished:failed") as error:
        simulation.run(EXAMPLES / "flower", config=config)
    said = re.sub(r"\s+", " ", str(error.value))
    assert "none of 1 rounds changed the model" in said
    assert "delta not finite 2x" in said


def test_the_readmes_command_ends_in_a_model_that_has_learned(simulation, tmp_path):
    (command,) = re.findall(r"^flwr run examples/flower .*", (ROOT / "README.md").read_text(), re.M)
    given = re.sub(r" (?=[a-z-]+=)", "\n", shlex.split(command)[-1])
    config = tomllib.loads(given) | {"save": str(tmp_path / "model.pt"), "evaluate-cohort": 1.0}
    printed = simulation.run(EXAMPLES / "flower", config=config)
    rounds = re.findall(r"local_accuracy ([\d.]+), .*test_accuracy ([\d.]+),", printed)
    assert len(rounds) == 20
    assert all(float(accuracy) > 0.85 for accuracy in rounds[-1])
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    model.load_state_dict(torch.load(tmp_path / "model.pt", weights_only=True))


def test_a_wrong_setting_is_refused_with_the_nearest():
    with pytest.raises(ValueError, match="did you mean 'alpha'"):
        ServerConfig.read({"algorithm": "fedcm", "settings": "alfa = 0.2"})


def changed_lines() -> int:
    """Lines that are new or gone, without blank ones, which the formatter asks for."""
    added = removed = 0
    for before in sorted((QUICKSTART / "before").rglob("*.*")):
        after = QUICKSTART / "after" / before.relative_to(QUICKSTART / "before")
        if before.suffix in (".py", ".toml"):
            texts = [path.read_text().splitlines() for path in (before, after)]
            lines = [[line for line in text if line.strip()] for text in texts]
            for line in difflib.unified_diff(*lines, n=0):
                added += line.startswith("+") and not line.startswith("+++")
                removed += line.startswith("-") and not line.startswith("---")
    return max(added, removed)


def test_the_way_from_a_plain_flower_app_is_short():
    assert 0 < changed_lines() <= 20


def test_the_plain_flower_app_learns(monkeypatch, capsys, tmp_path):
    """It has nothing of ours, so Flower's two halves of it meet in this process."""
    monkeypatch.syspath_prepend(QUICKSTART / "before")
    try:
        server, client = (
            importlib.import_module(f"quickstart.{side}_app").app for side in ("server", "client")
        )
        config = {"num-server-rounds": 5, "final-model": str(tmp_path / "model.pt")}
        grid = MemoryGrid(client, nodes=4, run_config=config)
        server(grid, Context(1, 1, {}, state=RecordDict(), run_config=config))
    finally:
        for name in [name for name in sys.modules if name.split(".")[0] == "quickstart"]:
            del sys.modules[name]
    assert final_accuracy(capsys.readouterr().out) > 0.6


def test_the_app_that_came_from_it_learns(simulation, tmp_path):
    assert run_quickstart(simulation, tmp_path / "model.pt", rounds=5) > 0.8
