"""The shipped apps under ``flwr run`` on Ray, and the way there from plain Flower."""

import difflib
import re
from pathlib import Path

import pytest

from fedlada.flower.loopback import DeploymentError, RaySimulation

EXAMPLES = Path(__file__).parents[2] / "examples"
QUICKSTART = EXAMPLES / "quickstart"


@pytest.fixture(scope="module")
def hundred(tmp_path_factory):
    with RaySimulation(tmp_path_factory.mktemp("ray") / "simulation", nodes=100) as engine:
        yield engine


def test_the_shipped_app_runs_any_algorithm_on_a_hundred_virtual_clients(hundred):
    config = {
        "algorithm": "feddyn",
        "settings": "a = 0.2, lr = 0.05",
        "num-server-rounds": 3,
        "nodes": 100,
        "target": 8,
    }
    printed = hundred.run(EXAMPLES / "flower", config=config)
    rounds = re.findall(r"round (\d)/3: (\d+) of 10 replies", printed)
    assert rounds == [("1", "8"), ("2", "8"), ("3", "8")]


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        ({"algorithm": "fedlda"}, "did you mean 'fedlada'"),
        ({"algorithm": "fedcm", "settings": "alfa = 0.2"}, "did you mean 'alpha'"),
    ],
)
def test_a_wrong_name_fails_before_round_1_with_the_nearest(hundred, config, sentence):
    with pytest.raises(DeploymentError) as error:
        hundred.run(EXAMPLES / "flower", config=config)
    said = re.sub(r"\s+", " ", str(error.value))
    assert sentence in said
    assert "round 1/" not in said


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


def test_both_sides_of_the_quickstart_learn(tmp_path):
    with RaySimulation(tmp_path / "simulation", nodes=4) as engine:
        for side in ("before", "after"):
            printed = engine.run(QUICKSTART / side, config={"num-server-rounds": 5})
            accuracy = re.search(r"accuracy (\d\.\d+)", printed)
            assert accuracy is not None
            assert float(accuracy[1]) > 0.6, side
