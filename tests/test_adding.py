"""Adding things: a toy of each kind, by the edits that CONTRIBUTING.md promises and no more.

The toys are added to a copy of the package.  One process then reaches each of them from Python,
from an experiment's file and from a Flower app's config.
"""

import shutil
import subprocess
import sys

import pytest

from places import ROOT

PACKAGE = ROOT / "src" / "fedlada"

NEW = {
    "algorithm": (
        "algorithms/local/toy.py",
        """
from dataclasses import dataclass
from ..part import LocalRule

@dataclass(frozen=True, kw_only=True)
class Toy(LocalRule):
    name = "toy"
    lr: float = 0.1
    weight_decay: float = 0.0

    def move(self, client, g, lr):
        client.y.add_(g.sign(), alpha=-lr)
""",
    ),
    "codec": (
        "protocol/codecs/toy.py",
        """
from .exact import Exact

class Toy(Exact):
    name = "toy"
    exact = False
""",
    ),
    "model": (
        "models/toy.py",
        """
from math import prod
from torch import nn

NAME = "toy"

def make(data, *, bias: bool = True):
    return nn.Sequential(nn.Flatten(), nn.Linear(prod(data.shape), data.outputs, bias=bias))
""",
    ),
    "data set": (
        "data/toy.py",
        """
import torch
from .examples import Examples
from .source import Source

def load(split, *, size: int = 40):
    generator = torch.Generator().manual_seed(len(split))
    inputs = torch.randn(size, 6, generator=generator)
    return Examples(inputs, (inputs[:, 0] > 0).long())

TOY = Source(name="toy", load=load, partition="iid", model="toy")
""",
    ),
    "robust rule": (
        "server/aggregate/toy.py",
        """
from dataclasses import dataclass
from .held import Rule

@dataclass(frozen=True, kw_only=True)
class Toy(Rule):
    name = "toy"
    factor: float = 1.0

    def combine(self, replies):
        return replies[0] * self.factor
""",
    ),
    "command": (
        "toy.py",
        """
def toy(parser, words):
    \"\"\"Say a word.\"\"\"
    parser.add_argument("word")
    print("toy says", parser.parse_args(words).word)
""",
    ),
    "engine": (
        "experiment/run/toy.py",
        """
from .execute import rounds as in_process

def rounds(config, directory):
    (directory.path / "toy").touch()
    return in_process(config, directory)
""",
    ),
}
"""The file of each toy."""

LINES = {
    "algorithm": [
        ("algorithms/local/__init__.py", "from .sgd import", "from .toy import Toy as Toy"),
        (
            "algorithms/registry.py",
            '"averaging": {',
            '"fedtoy": Named(Algorithm(LOCAL_RULES["toy"]()), "A toy.", "nobody"),',
        ),
    ],
    "codec": [("protocol/codecs/registry.py", "from .exact import", "from .toy import Toy as Toy")],
    "model": [("models/__init__.py", "from torch import nn", "from . import toy as toy")],
    "data set": [("data/sources.py", "from .digits import", "from .toy import TOY as TOY")],
    "robust rule": [
        ("server/aggregate/robust.py", "from .mean import", "from .toy import Toy as Toy")
    ],
    "command": [("cli.py", "COMMANDS = {", '"toy": Command("toy", "", "Say a word."),')],
    "engine": [
        (
            "experiment/config/named.py",
            "ENGINES = {",
            '"toy": "fedlada.experiment.run.toy:rounds",',
        )
    ],
    "Plan field": [("server/plan.py", "    seed: int = 0", "    patience: int = 3")],
}
"""The lines of each toy: a file, the line to stand behind, and the new line."""

CHECKS = '''
import sys
from pathlib import Path

import torch

import fedlada
from fedlada.cli import main
from fedlada.data import load
from fedlada.experiment.config.reading import experiment, read
from fedlada.experiment.run.directory import RunDirectory
from fedlada.experiment.run.execute import run
from fedlada.flower import ServerConfig
from fedlada.server.plan import Plan

data = [(torch.randn(4, 2), torch.randint(2, (4,))) for _ in range(4)]


def simulated(**settings):
    settings = {"rounds": 1, "cohort": 4, "train": fedlada.LocalTraining(steps=1)} | settings
    return fedlada.simulate(torch.nn.Linear(2, 2), data, **settings).run()


def in_file(text):
    """Run a file in a new directory, and return its plan and the directory."""
    Path("toy.toml").write_text(text)
    directory = Path(f"run{len(list(Path().iterdir()))}")
    config = read(Path("toy.toml"), ["federation.rounds=1", "federation.cohort=4"])
    RunDirectory(directory).prepare(config)
    assert len(list(run(directory))) == 1
    return config.plan(), directory


def in_flower(**config):
    return ServerConfig.read({key.replace("_", "-"): value for key, value in config.items()}).plan


DATA = '[data]\\ndataset = "toy"\\nclients = 4\\n'


def algorithm():
    assert simulated(algorithm="fedtoy", lr=0.2)
    assert in_file('algorithm = "fedtoy"\\n' + DATA)[0].algorithm == fedlada.algorithm("fedtoy")
    assert in_flower(algorithm="fedtoy").algorithm == fedlada.algorithm("fedtoy")
    assert fedlada.algorithm({"local": "toy"}) == fedlada.algorithm("fedtoy")


def codec():
    assert simulated(codec="delta=toy")
    plans = (Plan(codec="toy"), in_file(DATA + '[federation]\\ncodec = "toy"\\n')[0])
    assert {str(plan.codec) for plan in (*plans, in_flower(codec="toy"))} == {"*=toy/1 | *=toy/1"}


def model():
    config = experiment({"data.dataset": "toy", "model.bias": False}, source="")
    assert config.model.options == {"bias": False}
    assert in_file(DATA + '[model]\\nname = "toy"\\nbias = false\\n')


def data_set():
    assert len(load("toy", split="test", size=9)) == 9
    assert in_file(DATA + "[data.options]\\nsize = 60\\n")


def robust_rule():
    assert simulated(aggregator="toy")
    table = '{ name = "toy", factor = 0.5 }'
    plan, _ = in_file(DATA + f"[federation]\\naggregator = {table}\\n")
    assert plan.aggregator.factor == in_flower(aggregator=table).aggregator.factor == 0.5
    assert in_file(DATA + '[federation]\\ndefence = "toy"\\n')[0].aggregator.name == "toy"


def command():
    try:
        main(["toy", "hello"])
    except SystemExit as ended:
        assert not ended.code
    try:
        main(["--help"])
    except SystemExit as ended:
        assert not ended.code


def engine():
    _, directory = in_file(DATA + '[engine]\\nname = "toy"\\n')
    assert (directory / "toy").exists()


def plan_field():
    assert simulated(patience=5)
    assert Plan().patience == in_flower().patience == 3
    assert Plan(patience=5).patience == in_flower(patience=5).patience == 5
    assert in_file(DATA + "[federation]\\npatience = 5\\n")[0].patience == 5
    assert Plan(patience=5).identity()["patience"] == 5
    try:
        experiment({"federation.patience": "five"}, source="")
    except fedlada.FedladaError as error:
        assert "federation.patience" in str(error)
    else:
        raise AssertionError("a wrong type was accepted")


for check in (algorithm, codec, model, data_set, robust_rule, command, engine, plan_field):
    check()
    print("reached:", check.__name__.replace("_", " "))
'''


@pytest.fixture(scope="module")
def reached(tmp_path_factory) -> str:
    """What the process prints that uses a copy of the package with all toys."""
    here = tmp_path_factory.mktemp("adding")
    package = here / "src" / "fedlada"
    shutil.copytree(PACKAGE, package, ignore=shutil.ignore_patterns("__pycache__"))
    for path, text in NEW.values():
        assert not (package / path).exists()
        (package / path).write_text(text)
    for path, behind, line in (edit for edits in LINES.values() for edit in edits):
        lines = (package / path).read_text().splitlines()
        (at,) = (i for i, other in enumerate(lines) if other.strip().startswith(behind.strip()))
        (package / path).write_text("\n".join([*lines[: at + 1], line, *lines[at + 1 :], ""]))
    ended = subprocess.run(
        [sys.executable, "-c", CHECKS],
        cwd=here,
        env={"PYTHONPATH": str(here / "src"), "OMP_NUM_THREADS": "1", "HOME": str(here)},
        capture_output=True,
        text=True,
    )
    return ended.stdout + ended.stderr


@pytest.mark.parametrize("kind", LINES)
def test_a_toy_of_each_kind_needs_one_file_and_one_line(reached, kind):
    assert len(LINES[kind]) == (2 if kind == "algorithm" else 1)
    assert f"reached: {kind.lower()}\n" in reached, reached


def test_the_toy_command_runs_and_is_listed(reached):
    assert "toy says hello\n" in reached
    assert "Say a word.\n" in reached
