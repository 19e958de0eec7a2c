"""The shipped apps under ``flwr run`` on Ray, and the way there from plain Flower."""

import difflib
import importlib
import re
import sys
from pathlib import Path

import pytest
from flwr.app import Context, RecordDict

from fedlada.flower import ServerConfig
from fedlada.flower.loopback import DeploymentError, RaySimulation
from fedlada.flower.memory_grid import MemoryGrid

EXAMPLES = Path(__file__).parents[2] / "examples"
QUICKSTART = EXAMPLES / "quickstart"


@pytest.fixture(scope="module")
def simulation(tmp_path_factory):
    with RaySimulation(tmp_path_factory.mktemp("ray") / "simulation", nodes=4, at_once=1) as engine:
        yield engine


def test_a_wrong_name_fails_before_round_1_with_the_nearest(simulation):
    with pytest.raises(DeploymentError) as error:
        simulation.run(EXAMPLES / "flower", config={"algorithm": "fedlda"})
    said = re.sub(r"\s+", " ", str(error.value))
    assert "did you mean 'fedlada'" in said
    assert "round 1/" not in said


def test_a_wrong_setting_is_refused_with_the_nearest():
    with pytest.raises(ValueError, match="did you mean 'alpha'"):
        ServerConfig.read({"algorithm": "fedcm", "settings": "alfa = 0.2"})


def changed_lines() -> int:
    added = removed = 0
    for before in sorted((QUICKSTART / "before").rglob("*.*")):
        after = QUICKSTART / "after" / before.relative_to(QUICKSTART / "before")
        if before.suffix in (".py", ".toml"):
            lines = [path.read_text().splitlines() for path in (before, after)]
            for line in difflib.unified_diff(*lines, n=0):
                added += line.startswith("+") and not line.startswith("+++")
                removed += line.startswith("-") and not line.startswith("---")
    return max(added, removed)


def test_the_way_from_a_plain_flower_app_is_short():
    assert 0 < changed_lines() <= 15


def learns(printed: str) -> bool:
    accuracy = re.search(r"accuracy (\d\.\d+)", printed)
    return accuracy is not None and float(accuracy[1]) > 0.6


def test_the_plain_flower_app_learns(monkeypatch, capsys):
    """It has nothing of ours, so Flower's two halves of it meet in this process."""
    monkeypatch.syspath_prepend(QUICKSTART / "before")
    try:
        server, client = (
            importlib.import_module(f"quickstart.{side}_app").app for side in ("server", "client")
        )
        config = {"num-server-rounds": 5}
        grid = MemoryGrid(client, nodes=4, run_config=config)
        server(grid, Context(1, 1, {}, state=RecordDict(), run_config=config))
    finally:
        for name in [name for name in sys.modules if name.split(".")[0] == "quickstart"]:
            del sys.modules[name]
    assert learns(capsys.readouterr().out)


def test_the_app_that_came_from_it_learns(simulation):
    assert learns(simulation.run(QUICKSTART / "after", config={"num-server-rounds": 5}))
