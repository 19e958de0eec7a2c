"""The shipped apps under ``flwr run`` on Ray, and the way there from plain Flower."""

import difflib
import importlib
import re
import shlex
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest
import torch
from flwr.app import Context, RecordDict
from torch import nn

from fedlada import FedladaError
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


@dataclass
class InMemory:
    """An engine on which the two halves of an app meet in this process."""

    capsys: pytest.CaptureFixture[str]
    monkeypatch: pytest.MonkeyPatch
    nodes: int = 2

    def run(self, app: Path, *, config: Mapping[str, object]) -> str:
        """What `flwr run` would show of it."""
        about = tomllib.loads((app / "pyproject.toml").read_text())["tool"]["flwr"]["app"]
        config = about["config"] | config
        places = [about["components"][half].split(":") for half in ("serverapp", "clientapp")]
        self.monkeypatch.syspath_prepend(app)
        packages = {module.split(".")[0] for module, _ in places}
        others = self._taken_out(packages)  # tests have modules of such names, too
        try:
            server, client = (
                getattr(importlib.import_module(module), name) for module, name in places
            )
            grid = MemoryGrid(client, nodes=self.nodes, run_config=config)
            server(grid, Context(1, 1, {}, state=RecordDict(), run_config=config))
        finally:
            self._taken_out(packages)
            sys.modules.update(others)
        return self.capsys.readouterr().out

    @staticmethod
    def _taken_out(packages: set[str]) -> dict[str, ModuleType]:
        names = [name for name in sys.modules if name.split(".")[0] in packages]
        return {name: sys.modules.pop(name) for name in names}


@pytest.fixture
def in_memory(capsys, monkeypatch):
    return InMemory(capsys, monkeypatch)


def test_a_wrong_name_fails_before_round_1_with_the_nearest(in_memory, capsys):
    with pytest.raises(FedladaError, match="did you mean 'fedlada'"):
        in_memory.run(EXAMPLES / "flower", config={"algorithm": "fedlda"})
    assert "round 1/" not in capsys.readouterr().out


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


def test_the_plain_flower_app_learns(in_memory, tmp_path):
    config = {"num-server-rounds": 5, "final-model": str(tmp_path / "model.pt")}
    in_memory.nodes = 4
    assert final_accuracy(in_memory.run(QUICKSTART / "before", config=config)) > 0.6


def test_the_app_that_came_from_it_learns(in_memory, tmp_path):
    """On real nodes it runs in `test_loopback`."""
    assert run_quickstart(in_memory, tmp_path / "model.pt", rounds=5) > 0.8
