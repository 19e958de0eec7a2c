"""The shipped apps under ``flwr run`` as a user types it, and the way there from plain Flower."""

import dataclasses
import difflib
import importlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest
import torch
from flwr.app import Context, RecordDict
from torch import nn

from fedlada import FedladaError
from fedlada.flower import ServerConfig
from fedlada.flower.loopback.launcher import Launcher
from fedlada.flower.loopback.processes import free_port
from fedlada.flower.memory_grid import MemoryGrid
from fedlada.flower.server import KEYS
from flower.quickstart import QUICKSTART, final_accuracy, run_quickstart
from places import ROOT

EXAMPLES = ROOT / "examples"


TOO_BUSY = (
    "Failed to start local SuperLink",
    "The current node timed out during startup",
    "0 nodes answered within",
)
"""What is printed on a machine that is too slow at the moment: the user types again."""


class Terminal:
    """A user's terminal in a home of its own, where Flower has its defaults.

    Only what concerns other processes of this machine and other hosts is set: two ports, and no
    telemetry.  All commands use the SuperLink that the first of them would start.
    """

    def __init__(self, home: Path) -> None:
        self._launcher = Launcher(home, {})
        programs = Path(sys.executable).parent
        others = {k: v for k, v in os.environ.items() if not k.startswith("FLWR_")}
        self._environment = others | {
            "HOME": str(home),
            "PATH": f"{programs}{os.pathsep}{others['PATH']}",
            "PYTHONPATH": str(ROOT / "src"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": str(free_port()),
            "FLWR_LOCAL_CONTROL_API_PORT": str(free_port()),
        }

    def type(self, command: str) -> str:
        """Type a command in the directory of the checkout and return what it prints."""
        for _ in range(5):
            typed = self._run(*shlex.split(command))
            if not any(words in typed.stdout for words in TOO_BUSY):
                break
        assert typed.returncode == 0, typed.stdout
        return typed.stdout

    def _run(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            words,
            env=self._environment | self._launcher.mark("typed"),
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=600,
        )

    def __enter__(self) -> "Terminal":
        self._launcher.open()
        patient = (  # `flwr` gives its SuperLink 15 s to start, too few beside other tests
            "import flwr.cli.local_superlink as l\n"
            "l.LOCAL_SUPERLINK_STARTUP_TIMEOUT = 180.0\n"
            "l._start_local_superlink()"
        )
        started = self._run(sys.executable, "-c", patient)
        assert started.returncode == 0, started.stdout
        return self

    def __exit__(self, *error: object) -> None:
        self._launcher.close()


@pytest.fixture(scope="module")
def terminal(tmp_path_factory) -> Iterator[Terminal]:
    with Terminal(tmp_path_factory.mktemp("home")) as terminal:
        yield terminal


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


def test_every_key_can_be_set_with_the_shipped_app():
    """Flower refuses a key that the app does not list."""
    project = tomllib.loads((EXAMPLES / "flower" / "pyproject.toml").read_text())
    listed = project["tool"]["flwr"]["app"]["config"]
    fields = {f.name.replace("_", "-") for f in dataclasses.fields(ServerConfig)} - {"plan"}
    assert fields | set(KEYS.values()) | {"settings"} <= set(listed)
    usual = {"nodes": 1, "num-partitions": 0}
    again = {key: value for key, value in listed.items() if key not in ("algorithm", "settings")}
    assert ServerConfig.read(again | {"rounds": 100} | usual) == ServerConfig.read({})


def test_a_run_in_which_nothing_is_applied_has_failed_and_says_why(in_memory):
    config = {"algorithm": "fedavg", "settings": "lr = 1e30", "rounds": 1}
    with (
        pytest.warns(UserWarning, match="delta not finite 2x"),
        pytest.raises(FedladaError, match="none of 1 rounds changed the model"),
    ):
        in_memory.run(EXAMPLES / "flower", config=config)


@pytest.mark.flower(seconds=200)
def test_the_readmes_command_ends_in_a_model_that_has_learned(terminal, tmp_path):
    (command,) = re.findall(r"^flwr run examples/flower .*", (ROOT / "README.md").read_text(), re.M)
    saved = f'{command[:-1]} evaluate-cohort="all" save="{tmp_path}/model.pt"\''
    printed = terminal.type(saved)
    rounds = re.findall(r"local_accuracy ([\d.]+), .*test_accuracy ([\d.]+),", printed)
    assert len(rounds) == 20
    assert all(float(accuracy) > 0.85 for accuracy in rounds[-1])
    assert "No additional application dependencies needed installation" in printed
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    model.load_state_dict(torch.load(tmp_path / "model.pt", weights_only=True))


@pytest.mark.flower(seconds=200)
def test_the_quickstart_runs_as_it_is_shipped(terminal, tmp_path):
    saved = f'final-model="{tmp_path}/model.pt"'
    printed = terminal.type(f"flwr run examples/quickstart/after --stream -c '{saved}'")
    assert "\naccuracy" in printed, printed
    assert final_accuracy(printed) > 0.6
    assert (tmp_path / "model.pt").exists()


@pytest.mark.flower(seconds=200)
def test_a_mistake_in_an_app_is_a_sentence_in_the_log_of_its_server(terminal, tmp_path):
    """The mistake is what Flower's own template does."""
    shutil.copytree(QUICKSTART / "after", tmp_path / "app")
    client = tmp_path / "app" / "quickstart" / "client_app.py"
    before = "    with training("
    wrong = 'lr = message.content["config"]["lr"]\n'
    client.write_text(client.read_text().replace(before, f"    {wrong}{before}"))
    printed = terminal.type(f"flwr run {tmp_path}/app --stream")
    said = re.sub(r"\s+", " ", printed)
    assert re.search(r"round 1: site 0 sent no reply: error in app: .*local\.lr", said)
    assert "none of 3 rounds changed the model" in said
    assert "finished:failed" in terminal.type("flwr list --format json")


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
