"""A warm node: its worker stays loaded, ends with the node, and changes no bit."""

import os
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
import torch
from flwr.app import Context, Message, RecordDict

from fedlada import Plan, RoundRecord, algorithm, simulate
from fedlada.engines import InProcess
from fedlada.errors import FedladaError
from fedlada.flower import ServerConfig, run_server, warm_app
from fedlada.flower.memory_grid import MemoryGrid
from fedlada.flower.private_api import packed, set_task
from fedlada.flower.warm import keeping, node as warm_node, worker as warm_worker
from fedlada.flower.warm.local_socket import ConnectionSilent, receive, send
from fedlada.flower.warm.node import DIRECTORY, NodeWorker, WorkerFailed
from fedlada.protocol.messages import Failure, Reply, Task
from fedlada.protocol.seeds import seed_of

CLIENT = """
import os, time

import torch
from flwr.app import ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedlada import LocalTraining
from fedlada.data import ClientData
from fedlada.flower import client_app

app = ClientApp()
messages = 0


@app.train()
def train(message, context):
    global messages
    messages += 1
    asked = context.run_config["ask"]
    if asked == "fail":
        raise ValueError("asked to fail")
    if asked == "sleep":
        time.sleep(60)
    print("message", messages)
    before = context.state["seen"]["count"] if "seen" in context.state else 0
    context.state["seen"] = MetricRecord({"count": before + 1})
    found = {"pid": os.getpid(), "messages": messages, "random": torch.rand(1).item()}
    return Message(RecordDict({"found": ConfigRecord(found)}), reply_to=message)


def model():
    return torch.nn.Linear(20, 5)


def data(client):
    inputs = torch.randn(40, 20, generator=torch.Generator().manual_seed(client))
    return ClientData(inputs, inputs[:, :5].argmax(1))


steps = LocalTraining(steps=2, batch_size=8)
learner = client_app(model, lambda context: data(context.node_config["partition-id"]), steps)
"""

Ask = Callable[..., dict]

# Here the process that started a worker lives on, and Python wonders why it does not wait.
pytestmark = [
    pytest.mark.programs(seconds=30),
    pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning"),
]


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[subprocess.Popen]:
    """A process in the place of a SuperNode; this one is what Flower starts for a message."""
    home = tmp_path / ("a-directory-with-a-name-too-long-for-a-socket" * 2)
    (tmp_path / "warm_task.py").write_text(CLIENT)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("FLWR_HOME", str(home))
    monkeypatch.setattr(sys, "argv", ["/some/where/flwr-clientapp"])
    with subprocess.Popen(["sleep", "600"]) as process:
        monkeypatch.setattr(os, "getppid", lambda: process.pid)
        yield process
        process.kill()
    sys.modules.pop("warm_task", None)


@pytest.fixture
def context() -> Context:
    set_task(run=1, node=7, task=3)
    return Context(run_id=1, node_id=7, node_config={}, state=RecordDict(), run_config={"ask": ""})


@pytest.fixture
def ask(context: Context) -> Ask:
    app = warm_app("warm_task:app")

    def asked(what: str = "", run: int = 1) -> dict:
        context.run_id, context.run_config = run, {"ask": what}
        message = Message(RecordDict(), dst_node_id=7, message_type="train")
        return dict(app(message, context).content["found"])

    return asked


def workers(node: subprocess.Popen) -> list[int]:
    """The workers of this node."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if b"fedlada.flower.warm.worker" in command and b'"node": %d' % node.pid in command:
            found.append(int(process.name))
    return found


def await_end(*pids: int) -> None:
    deadline = time.monotonic() + 30
    while any(Path(f"/proc/{pid}/cmdline").exists() and alive(pid) for pid in pids):
        assert time.monotonic() < deadline, "a worker did not end"
        time.sleep(0.05)


def alive(pid: int) -> bool:
    try:  # a process that nobody has waited for yet has no command line
        return Path(f"/proc/{pid}/cmdline").read_bytes() != b""
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_worker_answers_every_message_and_is_replaced_when_it_was_killed(
    node: subprocess.Popen, ask: Ask, context: Context, capfd: pytest.CaptureFixture[str]
) -> None:
    first, second = ask(), ask()
    assert first["pid"] == second["pid"] != os.getpid()
    assert second["messages"] == 2
    assert first["random"] == second["random"], "the second message is not as in a new process"
    assert "message 1\nmessage 2\n" in capfd.readouterr().err
    with pytest.raises(WorkerFailed, match="ValueError: asked to fail"):
        ask("fail")
    os.kill(first["pid"], signal.SIGKILL)
    await_end(first["pid"])
    third = ask()
    assert third["messages"] == 1
    assert context.state["seen"]["count"] == 3
    other = ask(run=2)["pid"]
    await_end(third["pid"])
    assert workers(node) == [other]
    home = Path(os.environ["FLWR_HOME"]) / DIRECTORY
    modes = {path.suffix: stat.S_IMODE(path.lstat().st_mode) for path in home.iterdir()}
    assert modes == {".sock": 0o600, ".log": 0o600, ".lock": 0o600}
    assert stat.S_IMODE(home.stat().st_mode) == 0o700
    node.kill()
    await_end(other)


def test_a_message_whose_worker_is_killed_fails_and_one_that_is_given_up_ends_its_worker(
    node: subprocess.Popen, ask: Ask, context: Context
) -> None:
    kill = "import os, sys, time; time.sleep(1); os.kill(int(sys.argv[1]), 9)"
    pid = ask()["pid"]
    with (
        subprocess.Popen([sys.executable, "-c", kill, str(pid)]),
        pytest.raises(WorkerFailed, match="ended while it computed"),
    ):
        ask("sleep")
    context.run_config = {"ask": "sleep"}
    message = Message(RecordDict(), dst_node_id=7, message_type="train")
    with NodeWorker("warm_task:app", context, idle=60)._connected() as connection:
        send(connection, b"[1, 7, 3]", *packed(message, context))
        receive(connection, 1)
        (worker,) = workers(node)
    await_end(worker)


def test_a_worker_that_is_stopped_before_it_begins_is_replaced(
    node: subprocess.Popen, ask: Ask, context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = ask()["pid"]
    os.kill(first, signal.SIGSTOP)
    start = NodeWorker._start

    def patient(worker: NodeWorker) -> None:
        monkeypatch.setattr(warm_node, "BEGIN", 300.0)  # a new worker first imports torch
        start(worker)

    monkeypatch.setattr(NodeWorker, "_start", patient)
    monkeypatch.setattr(warm_node, "BEGIN", 0.5)
    second = ask()
    assert second["pid"] != first
    assert second["messages"] == 1
    os.kill(first, signal.SIGCONT)
    assert ask()["pid"] == second["pid"]
    assert context.state["seen"]["count"] == 3
    node.kill()
    await_end(first, second["pid"])


def test_a_silent_connection_does_not_hold_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warm_worker, "ARRIVAL", 0.1)
    one, other = socket.socketpair()
    with one, other, pytest.raises(ConnectionSilent, match="did not send all in time"):
        warm_worker.serve(one, warm_worker.Worker("no:app"), None)  # type: ignore[arg-type]


def test_a_worker_gets_no_credentials_of_flower(
    node: subprocess.Popen, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLWR_MODEL_API_KEY", "secret")
    monkeypatch.setenv("DATA_OF_THIS_NODE", "somewhere")
    environment = Path(f"/proc/{ask()['pid']}/environ").read_bytes()
    assert b"DATA_OF_THIS_NODE=somewhere" in environment
    assert b"FLWR_HOME=" in environment
    assert b"FLWR_MODEL_API_KEY" not in environment


def test_an_empty_part_is_sent_at_once_so_that_who_has_read_it_may_hang_up() -> None:
    worker, node = socket.socketpair()

    class Connection:
        def sendall(self, data: bytes) -> None:
            worker.sendall(data)
            assert receive(node, 1) == [b""]
            node.close()

    with worker:
        send(Connection(), b"")  # type: ignore[arg-type]


def test_an_unused_worker_ends(node: subprocess.Popen, context: Context) -> None:
    message = Message(RecordDict(), dst_node_id=7, message_type="train")
    reply = warm_app("warm_task:app", idle=0.1)(message, context)
    await_end(reply.content["found"]["pid"])


def test_nodes_whose_worker_is_killed_between_rounds_end_in_the_bits_of_a_run_in_process(
    node: subprocess.Popen,
) -> None:
    nodes, plan = 2, Plan(algorithm="scaffold", rounds=3, seed=5)
    import warm_task

    def kill(record: RoundRecord, model: object) -> None:
        assert len(workers(node)) == nodes
        if record.round == 1:
            worker = workers(node)[0]
            os.kill(worker, signal.SIGKILL)
            await_end(worker)

    grid = MemoryGrid(warm_app("warm_task:learner"), nodes=nodes)
    deployed = run_server(
        grid, ServerConfig(plan=plan, nodes=nodes), warm_task.model, on_round=kill
    )
    torch.manual_seed(seed_of(5, "model"))
    run = simulate(
        warm_task.model(),
        [warm_task.data(i) for i in range(nodes)],
        algorithm="scaffold",
        rounds=3,
        seed=5,
        train=warm_task.steps,
    )
    run.run()
    for name, vector in run.state.vectors.items():
        assert deployed.state.vectors[name].equal(vector)


def test_under_masks_a_worker_that_is_killed_within_a_round_takes_the_secrets_with_it(
    node: subprocess.Popen,
) -> None:
    """The node counts as lost, and the others end the round without it."""
    nodes, lock = 4, threading.Lock()
    import warm_task

    class Mixed(MemoryGrid):
        """The first node is warm, and its worker is killed when it should train."""

        def reply(self, message: Message) -> Message | None:
            with lock:
                first = message.metadata.dst_node_id == 1000
                self.app = warm_app("warm_task:learner") if first else warm_task.learner
                if first and message.metadata.message_type == "train":
                    (worker,) = workers(node)
                    os.kill(worker, signal.SIGKILL)
                    await_end(worker)
                return super().reply(message)

    privacy = {"noise": 0.0, "delta": 1e-3, "clip": 0.3, "steps": 2, "seeded": True}
    masks = {"least": 3, "group": 6}
    plan = Plan(algorithm="scaffold", rounds=1, cohort="all", privacy=privacy, masks=masks)
    config = ServerConfig(plan=plan, nodes=nodes, num_partitions=nodes)
    deployed = run_server(Mixed(warm_task.learner, nodes=nodes), config, warm_task.model)

    class Without(InProcess):
        def exchange(self, task: Task, cohort: Sequence[int]) -> Iterator[Reply | Failure]:
            yield Failure(client=0, reason="killed")
            yield from super().exchange(task, [client for client in cohort if client != 0])

    torch.manual_seed(seed_of(0, "model"))
    network, clients = warm_task.model(), [warm_task.data(i) for i in range(nodes)]
    engine = Without(algorithm("scaffold"), network, clients, warm_task.steps)
    run = simulate(
        network,
        clients,
        algorithm="scaffold",
        rounds=1,
        cohort="all",
        privacy=privacy,
        train=warm_task.steps,
        engine=engine,
    )
    run.run()
    for name, vector in run.state.vectors.items():
        assert deployed.state.vectors[name].equal(vector)


@pytest.mark.parametrize("in_worker", [True, False])
def test_data_are_loaded_once_in_a_worker_and_for_every_message_elsewhere(
    in_worker: bool, context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeping, "_in_worker", in_worker)
    loads: list[Context] = []
    load = keeping.kept(lambda context: loads.append(context) or len(loads))
    assert [load(context), load(context)] == ([1, 1] if in_worker else [1, 2])


def test_a_directory_that_others_can_enter_is_refused(node: subprocess.Popen, ask: Ask) -> None:
    (Path(os.environ["FLWR_HOME"]) / DIRECTORY).mkdir(mode=0o755, parents=True)
    with pytest.raises(FedladaError, match="mode 755"):
        ask()
    assert workers(node) == []


def test_a_warm_app_imports_no_torch() -> None:
    code = (
        "import sys\n"
        "from fedlada.flower import warm_app\n"
        "import fedlada.flower.warm.node\n"
        "warm_app('my_app.client:app')\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_reference_without_an_object_is_refused() -> None:
    with pytest.raises(FedladaError, match=r"my_app\.client:app"):
        warm_app("my_app.client")
