"""SuperNodes are killed, slow and forgetful: rounds keep their deadline, clients come back.

One run over TLS tells the whole story, for starting nodes and waiting for Flower to notice that
they are gone takes most of the time.  Node 2 is killed while it computes, a round later node 1
while it uploads; a round is played without them, both are started again and take part again.  In
the last round node 2 uploads at 1 kB/s, and node 1 has lost what its client kept.
The app is the shipped one of ``examples/flower`` with faults that ask to be killed, and with data
that need no scikit-learn, whose import would be half of a client's work.
"""

import json
import re
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from fedlada.engines import DiskStore
from fedlada.flower.grid import SKEW
from fedlada.flower.loopback import Deployment, Run
from flower.throttle import Throttle
from places import ROOT

pytestmark = pytest.mark.flower(seconds=240, group="alone")

SHIPPED = ROOT / "examples" / "flower"
CLIENTS, ROUNDS, DEADLINE = 3, 6, 30.0
FAULTS = ["", "3 uploading 5 forgetting", "2 computing 4 slow"]
"""For each node what goes wrong in which of its trainings."""
RATE = 1000
"""Bytes per second that the slow node can upload."""
PAUSE = 4
"""The run waits after this round until the killed nodes are back."""
PATIENCE = 150.0
"""The deadline of the next round, in which they take part, however slow the machine is."""

TASK = '''
"""A model as large as LeNet: its reply is 400 kB."""

from torch import nn


def model():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 640), nn.ReLU(), nn.Linear(640, 10))
'''

CLIENT = '''
"""The shipped client with faults in trainings chosen by the node's config."""

import shutil
import time
from pathlib import Path

import torch
from digits.large import model
from digits.task import train
from flwr.clientapp import ClientApp
from flwr.supercore.runtime.runtime_http_client import RuntimeHttpClient

from fedlada.data import ClientData
from fedlada.flower import answer_query, client_app

push = RuntimeHttpClient.PushObject


def hang(marks, fault):
    (marks / fault).touch()
    time.sleep(600)


def noise(client):
    generator = torch.Generator().manual_seed(client)
    inputs = torch.randint(17, (60, 1, 8, 8), generator=generator, dtype=torch.uint8)
    return ClientData(inputs, torch.randint(10, (60,), generator=generator))


def fault_of(node):
    """What goes wrong in this training, by its number."""
    with (Path(node["marks"]) / f"trainings-{node['partition-id']}").open("a+") as trainings:
        trainings.write("x")
        number = str(trainings.tell())
    words = node["faults"].split()
    return dict(zip(words[::2], words[1::2])).get(number)


def data(context):
    node = context.node_config
    marks, fault = Path(node["marks"]), faults[-1]
    if fault == "computing":
        hang(marks, fault)
    if fault == "uploading":

        def push_small(self, request):
            # The reply is announced and its small objects are sent; its vectors never are.
            if len(request.object_content) > 1000:
                hang(marks, fault)
            return push(self, request)

        RuntimeHttpClient.PushObject = push_small
    if fault == "slow":
        (marks / fault).touch()
        while not (marks / "throttled").exists():
            time.sleep(0.05)
    return noise(node["partition-id"])


app = ClientApp()
app.query()(answer_query)
shipped = client_app(model, data, train)
faults = []


@app.train()
def reply(message, context):
    node = context.node_config
    faults.append(fault_of(node))
    if faults[-1] == "forgetting":
        kept, lost = Path(node["state-directory"]), Path(node["marks"]) / "forgetting"
        shutil.move(kept / str(node["partition-id"]), lost / str(node["partition-id"]))
    return shipped(message, context)
'''

SERVER = '''
"""The shipped server, which also says how many pulls of a reply hang, and what it accepted."""

import itertools
import json
import threading
import time
from pathlib import Path

import torch
from digits.large import model
from flwr.superlink.grid import http_grid

from fedlada.flower import server_app
from fedlada.flower.grid import GridEngine

MARKS, PAUSE = Path({marks!r}), {pause}
rounds = itertools.count(1)
hanging = set()
pull = http_grid.pull_objects


def watched_pull(*args, **kwargs):
    number = object()

    def hangs():
        hanging.add(number)
        (MARKS / "hanging").touch()

    timer = threading.Timer(3.0, hangs)
    timer.start()
    try:
        return pull(*args, **kwargs)
    finally:
        timer.cancel()
        hanging.discard(number)
        if not hanging:  # it was slow
            (MARKS / "hanging").unlink(missing_ok=True)


http_grid.pull_objects = watched_pull
exchange = GridEngine.exchange


def patient_exchange(engine, task, cohort):
    engine.deadline = {patience} if task.round == PAUSE else {deadline}
    return exchange(engine, task, cohort)


GridEngine.exchange = patient_exchange


def evaluate(model):
    if next(rounds) == PAUSE:
        (MARKS / "paused").touch()
        while not (MARKS / "back").exists():
            time.sleep(0.1)
    return {{"hanging": len(hanging)}}


def finished(run, context):
    state = run.state
    vectors = {{name: vector.tensors for name, vector in state.vectors.items()}}
    torch.save(vectors, context.run_config["save"])
    (MARKS / "finished").write_text(json.dumps([state.run, list(state.last_accepted.items())]))


app = server_app(model, evaluate=evaluate, finished=finished)
'''


@dataclass
class Round:
    accepted: int
    seconds: float
    others: str
    """What became of those that were not, as the run prints it."""
    hanging: int
    """Pulls that hang on a reply when the round ends."""


@dataclass
class Story:
    rounds: list[Round]
    states: Path
    """Where the clients keep their vectors."""
    server: dict[str, list[torch.Tensor]]
    staged: list[str]
    """What node 1 had on disk when it was killed while uploading."""
    lost: Path
    """Where what the client on node 1 kept was moved to."""
    accepted: dict[int, tuple[str, int]]
    """Which version of what a client keeps is that of its last accepted reply."""
    uploaded: int
    """Bytes that node 2 could upload in the last round."""
    trainings: list[int]
    """How many each node began."""
    ending: float
    """Seconds from the end of the server's work to the end of the run."""


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Story:
    directory = tmp_path_factory.mktemp("faults")
    marks, states, saved = directory / "marks", directory / "states", directory / "saved.pt"
    lost = marks / "forgetting"
    lost.mkdir(parents=True)
    nodes = [
        {"marks": str(marks), "state-directory": str(states), "faults": faults} for faults in FAULTS
    ]
    config = {
        "rounds": ROUNDS,
        "algorithm": "scaffold",
        "cohort": CLIENTS,
        "nodes": CLIENTS,
        "minimum": 1,
        "deadline": DEADLINE,
        "save": str(saved),
    }
    app = faulty_app(directory / "app", marks)
    with (
        Deployment(directory / "deployment", nodes=CLIENTS, node_configs=nodes) as deployment,
        Throttle(deployment.address) as proxy,
    ):
        run = deployment.begin(app, config=config)
        await_mark(marks / "computing", run)
        deployment.kill_node(2)
        await_mark(marks / "uploading", run)
        await_mark(marks / "hanging", run)
        deployment.kill_node(1)
        staged = [path.name for path in (states / "1").iterdir()]
        await_mark(marks / "paused", run)
        expired = time.monotonic() + SKEW + 1
        deployment.start_node(2, through=proxy.address)
        time.sleep(max(0.0, expired - time.monotonic()))
        deployment.start_node(1)
        (marks / "back").touch()
        await_mark(marks / "slow", run)
        proxy.rate, before = RATE, proxy.uploaded
        (marks / "throttled").touch()
        output = run.wait()
        uploaded = proxy.uploaded - before
        ending = time.time() - (marks / "finished").stat().st_mtime
    name, last = json.loads((marks / "finished").read_text())
    print(output)  # pytest shows it with a failure
    return Story(
        rounds=read_rounds(output),
        states=states,
        server=torch.load(saved, weights_only=True),
        staged=staged,
        lost=lost,
        accepted={client: (name, round) for client, round in last},
        uploaded=uploaded,
        trainings=[(marks / f"trainings-{i}").stat().st_size for i in range(CLIENTS)],
        ending=ending,
    )


def faulty_app(directory: Path, marks: Path) -> Path:
    shutil.copytree(SHIPPED, directory)
    (directory / "digits" / "large.py").write_text(TASK)
    (directory / "digits" / "faulty_client.py").write_text(CLIENT)
    server = SERVER.format(marks=str(marks), pause=PAUSE, patience=PATIENCE, deadline=DEADLINE)
    (directory / "digits" / "faulty_server.py").write_text(server)
    project = (directory / "pyproject.toml").read_text()
    project = project.replace("digits.server:app", "digits.faulty_server:app")
    project = project.replace("digits.client:app", "digits.faulty_client:app")
    (directory / "pyproject.toml").write_text(project)
    return directory


def await_mark(mark: Path, run: Run, timeout: float = 180) -> None:
    end = time.monotonic() + timeout
    while not mark.exists():
        assert run.running(), f"the run ended before {mark.name}: {run.output()}"
        assert time.monotonic() < end, f"{mark.name} did not come within {timeout} s"
        time.sleep(0.05)


def read_rounds(output: str) -> list[Round]:
    line = rf"round \d+/{ROUNDS}: (\d+) of {CLIENTS} replies, (.*)hanging (\d+), ([\d.]+) s;"
    found = re.findall(line, output)
    assert len(found) == ROUNDS
    return [
        Round(accepted=int(accepted), others=others, seconds=float(seconds), hanging=int(hanging))
        for accepted, others, hanging, seconds in found
    ]


def test_a_round_whose_node_is_killed_while_it_computes_ends_by_its_deadline(story):
    second = story.rounds[1]
    assert 1 <= second.accepted <= CLIENTS - 1
    assert second.seconds <= 1.1 * DEADLINE


def test_a_round_whose_node_is_killed_while_it_uploads_ends_by_its_deadline(story):
    third = story.rounds[2]
    assert third.hanging == 1, "the server was not stuck in the half-uploaded reply"
    assert 1 <= third.accepted <= CLIENTS - 2
    assert third.seconds <= 1.1 * DEADLINE


def test_neither_later_rounds_nor_the_end_of_the_run_wait_for_the_half_uploaded_reply(story):
    assert story.rounds[3].hanging >= 1
    for r, deadline in zip(story.rounds[3:], [DEADLINE, PATIENCE, DEADLINE], strict=True):
        assert r.accepted >= 1
        assert r.seconds <= 1.1 * deadline
    assert story.ending < 60  # Flower gives up the reply after three minutes


def test_killed_nodes_that_are_started_again_take_part_again(story):
    assert story.rounds[PAUSE].accepted == CLIENTS


def test_a_round_whose_node_uploads_a_kilobyte_per_second_ends_by_its_deadline(story):
    last = story.rounds[-1]
    assert RATE < story.uploaded < 100 * RATE, "the node did not upload slowly"
    assert last.accepted == 1
    assert "1 deadline" in last.others
    assert last.seconds <= 1.1 * DEADLINE


def test_a_client_that_lost_what_it_kept_is_found_out_and_counted(story):
    assert "1 error in app" in story.rounds[-1].others


def test_a_node_that_comes_back_is_not_given_tasks_of_rounds_that_are_over(story):
    assert story.trainings[1] == 3 + (ROUNDS - PAUSE)


def test_scaffold_c_is_the_mean_of_c_i_after_all_of_this(story):
    rounds = sorted(name.rpartition("-")[2] for name in story.staged)
    assert rounds == ["1.pt", "2.pt"], "the killed node had not staged its third round"
    stores = [DiskStore(directory) for directory in (story.states, story.lost, story.states)]
    c_i = [store.load(i, story.accepted[i]).c_i for i, store in enumerate(stores)]
    flat = [torch.cat([t.flatten() for t in c]) for c in (story.server["c"], *c_i)]
    assert flat[0].norm() > 0
    torch.testing.assert_close(flat[0], torch.stack(flat[1:]).mean(0), rtol=1e-5, atol=1e-6)
