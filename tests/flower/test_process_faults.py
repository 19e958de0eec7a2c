"""SuperNodes are killed in the middle of a run: rounds keep their deadline, clients come back.

One run over TLS tells the whole story, for starting nodes and waiting for Flower to notice that
they are gone takes most of the time.  Node 2 is killed while it computes, a round later node 1
while it uploads; a round is played without them, both are started again and take part again.
The app is the shipped one of ``examples/flower`` with faults that ask to be killed, and with data
that need no scikit-learn, whose import would be half of a client's work.
"""

import re
import shutil
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from fedlada import DiskStore
from fedlada.flower.grid import SKEW
from fedlada.flower.loopback import Deployment

SHIPPED = Path(__file__).parents[2] / "examples" / "flower"
CLIENTS, ROUNDS, DEADLINE = 3, 6, 30.0
PAUSE = 4
"""The run waits after this round until the killed nodes are back."""

CLIENT = '''
"""The shipped client with a fault in a training chosen by the node's config."""

import time
from pathlib import Path

import torch
from digits.task import model, train
from flwr.supercore.runtime.runtime_http_client import RuntimeHttpClient

from fedlada.data import ClientData
from fedlada.flower import client_app

push = RuntimeHttpClient.PushObject


def hang(marks, fault):
    (marks / fault).touch()
    time.sleep(600)


def noise(client):
    generator = torch.Generator().manual_seed(client)
    inputs = torch.randint(17, (60, 1, 8, 8), generator=generator, dtype=torch.uint8)
    return ClientData(inputs, torch.randint(10, (60,), generator=generator))


def data(context):
    node = context.node_config
    marks = Path(node["marks"])
    with (marks / f"trainings-{node['partition-id']}").open("a+") as trainings:
        trainings.write("x")
        if trainings.tell() == node.get("training"):
            if node["fault"] == "computing":
                hang(marks, "computing")

            def push_small(self, request):
                # The reply is announced and its small objects are sent; its vectors never are.
                if len(request.object_content) > 1000:
                    hang(marks, "uploading")
                return push(self, request)

            RuntimeHttpClient.PushObject = push_small
    return noise(node["partition-id"])


app = client_app(model, data, train)
'''

SERVER = '''
"""The shipped server, which also says how many pulls of a reply hang."""

import itertools
import threading
import time
from pathlib import Path

from digits.server import save
from digits.task import model
from flwr.superlink.grid import http_grid

from fedlada.flower import server_app

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


http_grid.pull_objects = watched_pull


def evaluate(model):
    if next(rounds) == PAUSE:
        (MARKS / "paused").touch()
        while not (MARKS / "back").exists():
            time.sleep(0.1)
    return {{"hanging": len(hanging)}}


def finished(model, state, context):
    save(model, state, context)
    (MARKS / "finished").touch()


app = server_app(model, evaluate=evaluate, finished=finished)
'''


@dataclass
class Round:
    accepted: int
    seconds: float
    hanging: int
    """Pulls that hang on a reply when the round ends."""


@dataclass
class Story:
    rounds: list[Round]
    states: Path
    """Where the clients keep their vectors."""
    server: dict[str, list[torch.Tensor]]
    staged: list[str]
    """What node 1 had on disk, but not for its own, when it was killed while uploading."""
    trainings: list[int]
    """How many each node began."""
    ending: float
    """Seconds from the end of the server's work to the end of the run."""


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Story:
    directory = tmp_path_factory.mktemp("faults")
    marks, states, saved = directory / "marks", directory / "states", directory / "saved.pt"
    marks.mkdir()
    nodes = [
        {"marks": str(marks), "state-directory": str(states)} | fault
        for fault in (
            {},
            {"fault": "uploading", "training": 3},
            {"fault": "computing", "training": 2},
        )
    ]
    config = {
        "num-server-rounds": ROUNDS,
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
        ThreadPoolExecutor(1) as thread,
    ):
        run = thread.submit(deployment.run, app, config=config, timeout=400)
        try:
            await_mark(marks / "computing", run)
            deployment.kill_node(2)
            await_mark(marks / "uploading", run)
            (marks / "hanging").unlink(missing_ok=True)
            await_mark(marks / "hanging", run)
            deployment.kill_node(1)
            staged = [path.name for path in (states / "client-1" / "staged").iterdir()]
            await_mark(marks / "paused", run)
            expired = time.monotonic() + SKEW + 1
            deployment.start_node(2)
            time.sleep(max(0.0, expired - time.monotonic()))
            deployment.start_node(1)
        finally:
            (marks / "back").touch()
        output = run.result()
        ending = time.time() - (marks / "finished").stat().st_mtime
    print(output)  # pytest shows it with a failure
    return Story(
        rounds=read_rounds(output),
        states=states,
        server=torch.load(saved, weights_only=True),
        staged=staged,
        trainings=[(marks / f"trainings-{i}").stat().st_size for i in range(CLIENTS)],
        ending=ending,
    )


def faulty_app(directory: Path, marks: Path) -> Path:
    shutil.copytree(SHIPPED, directory)
    (directory / "digits" / "faulty_client.py").write_text(CLIENT)
    server = SERVER.format(marks=str(marks), pause=PAUSE)
    (directory / "digits" / "faulty_server.py").write_text(server)
    project = (directory / "pyproject.toml").read_text()
    project = project.replace("digits.server:app", "digits.faulty_server:app")
    project = project.replace("digits.client:app", "digits.faulty_client:app")
    (directory / "pyproject.toml").write_text(project)
    return directory


def await_mark(mark: Path, run: Future[str], timeout: float = 180) -> None:
    end = time.monotonic() + timeout
    while not mark.exists():
        assert not run.done(), f"the run ended before {mark.name}: {run.result()}"
        assert time.monotonic() < end, f"{mark.name} did not come within {timeout} s"
        time.sleep(0.05)


def read_rounds(output: str) -> list[Round]:
    line = rf"round \d+/{ROUNDS}: (\d+) of {CLIENTS} replies, .*hanging (\d+), ([\d.]+) s;"
    found = re.findall(line, output)
    assert len(found) == ROUNDS
    return [
        Round(accepted=int(accepted), seconds=float(seconds), hanging=int(hanging))
        for accepted, hanging, seconds in found
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
    assert all(r.hanging == 1 for r in story.rounds[3:])
    for r in story.rounds[PAUSE:]:
        assert r.accepted >= 1
        assert r.seconds <= 1.1 * DEADLINE
    assert story.ending < 60  # Flower gives up the reply after three minutes


def test_killed_nodes_that_are_started_again_take_part_again(story):
    assert max(r.accepted for r in story.rounds[PAUSE:]) == CLIENTS


def test_a_node_that_comes_back_is_not_given_tasks_of_rounds_that_are_over(story):
    assert story.trainings[1] == 3 + (ROUNDS - PAUSE)


def test_scaffold_c_is_the_mean_of_c_i_after_nodes_were_killed_and_came_back(story):
    assert story.staged == ["1-2.pt"], "the killed node had not staged its third round"
    stores = [DiskStore(story.states / f"client-{i}") for i in range(CLIENTS)]
    for i, store in enumerate(stores):
        store.commit(ROUNDS - 1, [i])  # as its next task would tell it
    c_i = [torch.cat([t.flatten() for t in s.load(i).c_i]) for i, s in enumerate(stores)]
    c = torch.cat([t.flatten() for t in story.server["c"]])
    assert c.norm() > 0
    torch.testing.assert_close(c, torch.stack(c_i).mean(0), rtol=1e-5, atol=1e-6)
