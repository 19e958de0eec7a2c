"""Two leaves of 50 clients each, as programs over TLS, are the flat federation of 100 clients.

One deployment serves all: a run of each algorithm, and a run with a robust rule whose second leaf
is killed in the middle of the second round and comes back for the third.
"""

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import fedlada
from fedlada.flower.loopback import Deployment, Run
from fedlada.protocol.seeds import seed_of

pytestmark = pytest.mark.flower(seconds=90)

LEAVES, EACH, DEADLINE = 2, 50, 60.0
CLIENTS = LEAVES * EACH
ONE_WAVE = {"calibration": CLIENTS}
"""All replies of the first round set its limits: fewer messages."""
RUNS = {
    "fedlada": {"algorithm": "fedlada", "rounds": 2},
    "scaffold": {"algorithm": "scaffold", "rounds": 2, "guard": ONE_WAVE},
    "robust": {
        "algorithm": "fedlada",
        "rounds": 3,
        "guard": ONE_WAVE,
        "aggregator": "trimmed-mean",
    },
}
KILLED = 2
"""The round of the last run in which the second leaf is killed."""

PROJECT = """
[project]
name = "tree"
version = "1.0.0"
description = "Two leaves and their root"
license = "Apache-2.0"

[tool.hatch.build.targets.wheel]
packages = ["."]

[tool.flwr.app]
publisher = "fedlada"

[tool.flwr.app.components]
serverapp = "tree.server:app"
clientapp = "tree.warm:app"

[tool.flwr.app.config]
runs = ""
marks = ""
"""

TASK = '''
"""The model, the data and the training of the test."""

import torch

from fedlada import LocalTraining
from fedlada.data import ClientData

train = LocalTraining(steps=2, batch_size=4)


def model():
    return torch.nn.Linear(6, 3)


def data(client):
    generator = torch.Generator().manual_seed(client)
    inputs = torch.randn(8, 6, generator=generator) + client % 3
    return ClientData(inputs, inputs[:, :3].argmax(1))
'''

LEAF = '''
"""A leaf; the second one hangs in the middle of a round until it is killed."""

import time
from pathlib import Path

from fedlada.flower import leaf_app
from tree.task import data, model, train

trained, marks = [], []


def own(context):
    leaf, leaves = (int(context.node_config[k]) for k in ("partition-id", "num-partitions"))
    if leaf == 1:
        marks.append(Path(context.run_config["marks"]))
    return [data(client) for client in range(leaf, {clients}, leaves)]


def hanging(model, mine, optimizer):
    if marks and (marks[0] / "kill").exists():
        trained.append(len(mine))
        if len(trained) == 20:
            (marks[0] / "kill").rename(marks[0] / "hanging")
            time.sleep(600)
    return train(model, mine, optimizer)


app = leaf_app(model, own, hanging)
'''

WARM = '''
"""A leaf whose worker stays loaded."""

from fedlada.flower import warm_app

app = warm_app("tree.leaf:app")
'''

SERVER = '''
"""The root: it does one run after the other."""

import json
import time
from pathlib import Path

import torch
from flwr.serverapp import ServerApp

from fedlada import Plan
from fedlada.flower import ServerConfig, run_server
from fedlada.server.record import plain_record
from tree.task import model

app = ServerApp()


@app.main()
def main(grid, context):
    marks = Path(context.run_config["marks"])
    for name, settings in json.loads(context.run_config["runs"]).items():

        def after(record, model):
            torch.save(model().state_dict(), marks / f"{{name}}-{{record.round}}.pt")
            if name == "robust" and record.round == {killed} - 1:
                (marks / "kill").touch()
            if name == "robust" and record.round == {killed}:
                (marks / "paused").touch()
                while not (marks / "back").exists():
                    time.sleep(0.1)

        plan = Plan(cohort={clients}, deadline={deadline}, **settings)
        config = ServerConfig(plan=plan, nodes={leaves}, clients={clients})
        run = run_server(grid, config, model, on_round=after)
        records = [plain_record(record) for record in run.history]
        (marks / f"{{name}}.json").write_text(json.dumps(records))
'''


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    directory = tmp_path_factory.mktemp("app")
    package = directory / "tree"
    package.mkdir()
    (directory / "pyproject.toml").write_text(PROJECT)
    (package / "__init__.py").touch()
    (package / "task.py").write_text(TASK)
    (package / "leaf.py").write_text(LEAF.replace("{clients}", str(CLIENTS)))
    (package / "warm.py").write_text(WARM)
    numbers = {"clients": CLIENTS, "leaves": LEAVES, "deadline": DEADLINE, "killed": KILLED}
    (package / "server.py").write_text(SERVER.format(**numbers))
    return directory


@pytest.fixture(scope="module")
def marks(app: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the runs have left their models and records."""
    directory = tmp_path_factory.mktemp("tree")
    marks = directory / "marks"
    marks.mkdir()
    nodes = [{"state-directory": str(directory / f"state-{i}")} for i in range(LEAVES)]
    config = {"runs": json.dumps(RUNS), "marks": str(marks)}
    with Deployment(directory / "deployment", nodes=LEAVES, node_configs=nodes) as deployment:
        run = deployment.begin(app, config=config)
        await_mark(marks / "hanging", run)
        deployment.kill_node(1)
        await_mark(marks / "paused", run)
        deployment.start_node(1)
        (marks / "back").touch()
        print(run.wait())  # pytest shows it with a failure
    return marks


def await_mark(mark: Path, run: Run, timeout: float = 400) -> None:
    end = time.monotonic() + timeout
    while not mark.exists():
        assert run.running(), f"the run ended before {mark.name}: {run.output()}"
        assert time.monotonic() < end, f"{mark.name} did not come within {timeout} s"
        time.sleep(0.1)


def flat(name: str, rounds: int) -> fedlada.Simulation:
    """The same run without leaves, in process."""
    task: dict = {}
    exec(TASK, task)
    torch.manual_seed(seed_of(0, "model"))
    settings = RUNS[name] | {"rounds": rounds, "cohort": CLIENTS}
    clients = [task["data"](client) for client in range(CLIENTS)]
    return fedlada.simulate(task["model"](), clients, train=task["train"], **settings)


@pytest.mark.parametrize(("name", "rounds"), [("fedlada", 2), ("scaffold", 2), ("robust", 1)])
def test_leaves_over_tls_end_in_the_bits_of_the_flat_federation(marks, name, rounds):
    run = flat(name, rounds)
    records = run.run()
    found = torch.load(marks / f"{name}-{rounds}.pt", weights_only=True)
    for key, t in run.model.state_dict().items():
        assert torch.equal(found[key], t), key
    told = json.loads((marks / f"{name}.json").read_text())
    for record, other in zip(records, told, strict=False):
        assert record.accepted == other["accepted"] == CLIENTS
        assert record.client_metrics == other["client_metrics"]
        assert record.drift == other["drift"]


def test_a_leaf_that_is_killed_in_mid_round_loses_its_clients_alone(marks):
    before, during, after = json.loads((marks / "robust.json").read_text())
    assert (before["accepted"], during["accepted"]) == (CLIENTS, CLIENTS - EACH)
    assert sum(during["failures"].values()) == EACH
    assert during["applied"]
    assert during["seconds"] <= 1.1 * DEADLINE
    assert after["accepted"] == CLIENTS, "the leaf did not come back"


def test_each_leaf_keeps_the_vectors_of_its_own_clients(marks):
    for leaf in range(LEAVES):
        kept = {int(path.name) for path in (marks.parent / f"state-{leaf}").iterdir()}
        assert kept == set(range(leaf, CLIENTS, LEAVES))
