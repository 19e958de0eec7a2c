"""One file, three engines: in process and on real nodes a run is the same run.

That it is on Ray, too, a test of the documents shows.
"""

import dataclasses
import json
import math
import os
import subprocess
import sys
import time
from contextlib import nullcontext

import pytest
from flwr.app import Context, RecordDict
from safetensors.torch import load_file

from fedlada import Checkpoints, export
from fedlada.algorithms import Vectors
from fedlada.cli import main
from fedlada.engines import Failure, Task
from fedlada.engines.around import Complete
from fedlada.errors import ExperimentError, FedladaError
from fedlada.experiment.config.named import ENGINES
from fedlada.experiment.config.reading import dump, experiment, parse, read
from fedlada.experiment.run import flower_app
from fedlada.experiment.run.directory import RunDirectory
from fedlada.experiment.run.execute import run as run_rounds
from fedlada.experiment.run.on_flower import watched_rounds
from fedlada.flower.client import check_place
from fedlada.flower.loopback import processes
from fedlada.flower.loopback.processes import marked
from fedlada.flower.memory_grid import MemoryGrid
from fedlada.server.record import record_of

# SCAFFOLD: clients keep vectors, which must survive the kill.
FILE = """
algorithm = "scaffold"
data = { dataset = "digits", clients = 5 }
train = { steps = 3, batch_size = 5 }
federation = { cohort = 2, rounds = 2 }
"""


def lines(directory):
    """The records without what a clock had to say."""
    found = [json.loads(line) for line in (directory / "records.jsonl").read_text().splitlines()]
    return [{k: v for k, v in record.items() if "seconds" not in k} for record in found]


def run(directory, *words):
    file = directory.with_suffix(".toml")
    file.write_text(FILE)
    RunDirectory(directory).prepare(read(file, words))
    return list(run_rounds(directory))


@pytest.fixture(scope="module")
def in_process(tmp_path_factory):
    directory = tmp_path_factory.mktemp("engines") / "process"
    run(directory, "federation.rounds=4")
    return directory


def assert_same(directory, expected, *, rounds):
    assert lines(directory) == lines(expected)[:rounds]
    assert sorted(path.name for path in directory.iterdir()) == sorted(
        path.name for path in expected.iterdir()
    )
    assert RunDirectory(directory).finished()


@pytest.mark.flower(seconds=70)
def test_a_deployment_whose_nodes_share_the_clients_is_the_run_in_process(tmp_path, in_process):
    directory = tmp_path / "deployment"
    records = run(directory, "engine.name=deployment", "engine.nodes=2")
    assert [record.round for record in records] == [1, 2]
    assert_same(directory, in_process, rounds=2)
    # Any engine goes on where another has stopped.
    records = run(directory, "federation.rounds=4")
    assert [record.round for record in records] == [3, 4]
    assert_same(directory, in_process, rounds=4)
    assert model(directory, tmp_path) == model(in_process, tmp_path)


def model(directory, where):
    file = where / "model.safetensors"
    export(Checkpoints(directory / "checkpoints"), file)
    return {name: tensor.tolist() for name, tensor in load_file(file).items()}


class InMemory:
    """Stands for Ray: the app's two halves in a process of their own, which starts at once."""

    PROGRAM = """
import sys, tomllib
from flwr.app import Context, RecordDict
from fedlada.experiment.run import flower_app
from fedlada.flower.memory_grid import MemoryGrid
from fedlada.server.record import record_of
with open(sys.argv[1], "rb") as file:
    given = tomllib.load(file)["tool"]["flwr"]["app"]["config"]
grid = MemoryGrid(flower_app.client, nodes=given["nodes"], run_config=given)
flower_app.server(grid, Context(1, 1, {}, state=RecordDict(), run_config=given))
"""

    def __init__(self, directory, *, nodes, environment):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()

    def begin(self, app):
        command = [sys.executable, "-c", self.PROGRAM, str(app / "pyproject.toml")]
        self.process = subprocess.Popen(command, env=os.environ | {"OMP_NUM_THREADS": "1"})
        return self

    def running(self):
        return self.process.poll() is None

    def wait(self):
        assert self.process.wait() == 0


@pytest.mark.programs(seconds=30)
def test_rounds_that_were_finished_when_the_server_was_killed_are_not_done_again(
    tmp_path, monkeypatch
):
    monkeypatch.setattr("fedlada.flower.loopback.RaySimulation", InMemory)
    directory, expected, rounds = tmp_path / "killed", tmp_path / "process", 60
    run(expected, f"federation.rounds={rounds}")
    (tmp_path / "file.toml").write_text(FILE)
    words = ["engine.name=ray", f"federation.rounds={rounds}"]
    RunDirectory(directory).prepare(read(tmp_path / "file.toml", words))
    going = run_rounds(directory)
    assert next(going).round == 1
    with pytest.raises(FedladaError, match="another process is running"):
        next(watched_rounds(read(directory / "config.toml"), RunDirectory(directory)))
    going.close()  # kills the server
    before = (directory / "records.jsonl").read_text().rpartition("\n")[0].splitlines()
    assert not RunDirectory(directory).finished()
    done = rounds - len(list(run_rounds(directory)))
    assert done in (len(before), len(before) - 1)  # a record is written before its checkpoint
    assert (directory / "records.jsonl").read_text().splitlines()[:done] == before[:done]
    assert_same(directory, expected, rounds=rounds)


def await_sleeper(mark, *, there):
    end = time.monotonic() + 60
    while bool(list(marked(mark, "sleep"))) != there:
        assert time.monotonic() < end
        time.sleep(0.05)


def test_what_flower_runs_ends_with_the_process_that_started_it(tmp_path):
    mark = f"FEDLADA_TEST={tmp_path}"
    starts = (
        f"import os, subprocess, time; from runpy import run_path;"
        f"run_path({processes.__file__!r})['guardian']({mark!r});"
        f"subprocess.Popen(['sleep', '600'], env={{'PATH': os.environ['PATH'],"
        f" 'FEDLADA_TEST': {str(tmp_path)!r}}}); print(flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", starts], stdout=subprocess.PIPE) as process:
        try:
            process.stdout.readline()
            await_sleeper(mark, there=True)
        finally:
            process.kill()
    await_sleeper(mark, there=False)


def test_clients_that_share_nodes_without_a_disk_are_the_run_in_process(tmp_path, in_process):
    directory = tmp_path / "memory"
    (tmp_path / "memory.toml").write_text(FILE)
    config = read(tmp_path / "memory.toml", ["federation.rounds=4"]).resolved()
    given = {
        "experiment": dump(config),
        "directory": str(directory),
        "prepared": str(tmp_path / "prepared.pt"),
        "nodes": 2,
    }
    RunDirectory(directory).prepare(config)
    grid = MemoryGrid(flower_app.client, nodes=2, run_config=given)
    context = Context(1, 1, {}, state=RecordDict(), run_config=given)
    flower_app.server(grid, context)
    assert lines(directory) == lines(in_process)


@pytest.mark.parametrize(("client", "mine"), [(1, True), (3, True), (0, False), (4, False)])
def test_a_node_takes_tasks_for_its_own_clients_alone(client, mine):
    node = {"partition-id": 1, "num-partitions": 2}
    context = Context(1, 1, node, state=RecordDict(), run_config={})
    with nullcontext() if mine else pytest.raises(ValueError, match="is not on node 1 of 2"):
        check_place(client, context)


def test_a_client_that_fails_ends_the_run_as_in_process():
    class Broken:
        clients, keeps, commit = 5, False, print

        def exchange(self, task, cohort):
            yield from (Failure(client=client, reason="Flower error 2") for client in cohort)

        def ask(self, task, step, messages):
            return self.exchange(task, list(messages))

    task = Task(round=0, seed=0, lr=0.1, vectors=Vectors())
    with pytest.raises(FedladaError, match="client 3 failed in round 1: Flower error 2"):
        list(Complete(Broken()).exchange(task, [3, 4]))
    with pytest.raises(FedladaError, match="client 4 failed in round 1: Flower error 2"):
        list(Complete(Broken()).ask(task, "keys", {4: b""}))


def test_a_record_is_what_its_line_says(in_process):
    for line in (in_process / "records.jsonl").read_text().splitlines():
        assert json.dumps(dataclasses.asdict(record_of(json.loads(line)))) == line
    null = line.replace('metrics": {', 'metrics": {"loss of one who diverged": null, ')
    record = record_of(json.loads(null))
    for table in (record.metrics, record.client_metrics):
        assert math.isnan(table["loss of one who diverged"])


def configured(*words):
    return experiment(dict(map(parse, words)), source="words")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            ["engine.name=rai"],
            r"engine\.name is 'rai'; did you mean 'ray'\? There are deployment, process, ray",
        ),
        (["engine.nodes=0"], r"engine\.nodes is 0; it must be greater than 0"),
        (["engine.node=3"], r"there is no key 'engine\.node'; .*'engine\.nodes'"),
        (
            ["engine.name=deployment", "engine.nodes=101"],
            r"engine\.nodes is 101, more than the 100 clients",
        ),
    ],
)
def test_a_wrong_engine_is_a_sentence(words, sentence):
    with pytest.raises(ExperimentError, match=sentence):
        configured(*words)


def test_an_engine_of_a_file_is_one_line_in_a_table(tmp_path, monkeypatch):
    (tmp_path / "toy_engine.py").write_text(
        "from fedlada.experiment.run.execute import rounds\n"
        "def toy(config, directory):\n"
        "    directory.log_file.write_text('the toy ran')\n"
        "    yield from rounds(config, directory)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(ENGINES, "toy", "toy_engine:toy")
    assert len(run(tmp_path / "run", "engine.name=toy")) == 2
    assert (tmp_path / "run" / "log.txt").read_text() == "the toy ran"


def test_without_flower_its_engines_are_a_sentence(tmp_path, monkeypatch):
    for module in [name for name in sys.modules if name.split(".")[:2] == ["fedlada", "flower"]]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "flwr", None)
    file = tmp_path / "file.toml"
    file.write_text(FILE)
    with pytest.raises(SystemExit, match=r'^fedlada: .*pip install "fedlada\[flower\]"'):
        main(["run", str(file), "engine.name=ray", "--out", str(tmp_path / "run")])
