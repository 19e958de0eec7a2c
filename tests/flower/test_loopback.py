"""A deployment on the loopback works, keeps strangers out, and leaves nothing behind.

A run on its nodes ends in the bits of the same run in process, and its operator sees it.
"""

import json
import os
import re
import stat
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from fedlada.cli import main
from fedlada.flower.loopback import Deployment, DeploymentError
from fedlada.flower.loopback.certificates import write_node_key
from fedlada.flower.loopback.processes import free_port
from fedlada.server.record import plain_record
from fedlada.server.watch import LOG_FORMAT, METRICS
from flower.agreement import ROUNDS, Runs, in_process, run_on
from flower.quickstart import run_quickstart
from places import ROOT

pytestmark = pytest.mark.flower(seconds=180)

PROJECT = """
[project]
name = "echo"
version = "1.0.0"
description = "Sends a vector to every node and gets it back"
license = "Apache-2.0"

[tool.flwr.app]
publisher = "fedlada"

[tool.flwr.app.components]
serverapp = "echo.server:app"
clientapp = "echo.client:app"

[tool.flwr.app.config]
text = ""
rate = 0.5
file = ""
"""

SERVER = """
import time
from pathlib import Path

import numpy as np
from flwr.app import ArrayRecord, Message, RecordDict
from flwr.serverapp import ServerApp

import fedlada

app = ServerApp()


@app.main()
def main(grid, context):
    config = context.run_config
    if config["text"] == "fail":
        raise ValueError("asked to fail")
    sent = np.arange(4.0)
    content = RecordDict({"x": ArrayRecord([sent])})
    missing = set(
        grid.push_messages(
            [Message(content, dst_node_id=i, message_type="train") for i in grid.get_node_ids()]
        )
    )
    deadline = time.monotonic() + 120
    while missing and time.monotonic() < deadline:
        for reply in grid.pull_messages(missing):
            missing.discard(reply.metadata.reply_to_message_id)
            (got,) = reply.content["x"].to_numpy_ndarrays()
            node = dict(reply.content["node"])
            print("reply from", sorted(node.items()), bool((got == sent).all()))
        time.sleep(0.2)
    print("config", sorted(config.items()))
    Path(config["file"]).write_text("written by the ServerApp")
"""

CLIENT = """
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


@app.train()
def train(message, context):
    node = ConfigRecord(dict(context.node_config))
    return Message(RecordDict({"x": message.content["x"], "node": node}), reply_to=message)
"""


HOOK = ROOT / "benchmarks" / "apps" / "counted"
"""Counts what a SuperNode sends to, and receives from, the SuperLink."""

ENDED = [("scaffold", "exact"), ("fedlada", "halves", "bias"), ("fedlada-rows", "small")]
"""One whose clients keep vectors, and adaptive ones with codecs, the app's own and a preset."""
ENVELOPE = 8_000
"""An upper bound of the bytes beside the vectors, per message: header, names, hashes, and what
Flower wraps it all in."""


@pytest.fixture(scope="module")
def counted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file to which the hook writes."""
    file = tmp_path_factory.mktemp("hooks") / "counted"
    file.touch()
    return file


@pytest.fixture(scope="module")
def port() -> int:
    """Where the ServerApp serves its metrics."""
    return free_port()


@pytest.fixture(scope="module")
def deployment(
    tmp_path_factory: pytest.TempPathFactory, counted: Path, port: int
) -> Iterator[Deployment]:
    directory = tmp_path_factory.mktemp("deployment")
    sites = [{"site": "a b"}, {"site": "c"}]
    paths = [str(HOOK), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {"PYTHONPATH": os.pathsep.join(paths), "COUNTED": str(counted)}
    environment |= {METRICS: str(port), LOG_FORMAT: "json"}
    with Deployment(directory, nodes=2, node_configs=sites, environment=environment) as started:
        yield started
    assert processes_of(directory) == {}


@dataclass(frozen=True)
class Observed:
    """What was seen of runs on the deployment, from their begin to their end."""

    runs: Runs
    passed: dict[str, int]
    """Bytes that the SuperNodes sent up and received down."""
    pages: list[str]
    """The metrics, asked for again and again."""
    events: list[dict]
    """The JSON lines of the log that flwr shows."""


@pytest.fixture(scope="module")
def observed(
    deployment: Deployment,
    coded: None,
    counted: Path,
    port: int,
    tmp_path_factory: pytest.TempPathFactory,
) -> Observed:
    before = len(counted.read_text().splitlines())
    saved = tmp_path_factory.mktemp("runs") / "saved"
    with asking(f"http://127.0.0.1:{port}/metrics") as pages:
        runs = run_on(deployment, ENDED, saved, cohort=2)
    lines = [line.split() for line in counted.read_text().splitlines()[before:]]
    # Of objects the bodies: the third word of a line is the request's, the last the response's.
    passed = {
        way: sum(int(line[body]) for line in lines if line[0].endswith(f"fleet/{name}-object"))
        for way, name, body in (("up", "push", 2), ("down", "pull", 4))
    }
    logs = sorted((deployment.directory / "logs").glob("run-*.log"))
    printed = [line for log in logs for line in log.read_text().splitlines()]
    events = [json.loads(line) for line in printed if line.startswith('{"time"')]
    return Observed(runs, passed, pages, events)


@contextmanager
def asking(url: str) -> Iterator[list[str]]:
    """Ask for a page until the block ends; what came is in the list."""
    pages: list[str] = []
    over = threading.Event()

    def ask() -> None:
        while not over.wait(0.2):
            with suppress(OSError), urllib.request.urlopen(url, timeout=5) as answer:
                pages.append(answer.read().decode())

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield pages
    finally:
        over.set()
        thread.join()


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("app")
    package = directory / "echo"
    package.mkdir()
    (directory / "pyproject.toml").write_text(PROJECT)
    (package / "__init__.py").touch()
    (package / "server.py").write_text(SERVER)
    (package / "client.py").write_text(CLIENT)
    return directory


def processes_of(directory: Path) -> dict[int, str]:
    """Living processes that carry the directory in environment, command line or cwd."""
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes()
            text = command + (process / "environ").read_bytes()
            text += str((process / "cwd").readlink()).encode()
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
        if str(directory).encode() in text:
            found[int(process.name)] = command.replace(b"\0", b" ").decode()
    return found


def workers_of(directory: Path) -> list[int]:
    """Workers of warm nodes whose home is in the directory."""
    found = processes_of(directory)
    return [pid for pid, command in found.items() if "fedlada.flower.warm.worker" in command]


def listening_addresses(pids: list[int]) -> set[str]:
    """The local addresses, in hexadecimal as the kernel lists them, on which the pids listen."""
    sockets = set()
    for pid in pids:
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            try:
                if match := re.fullmatch(r"socket:\[(\d+)\]", str(descriptor.readlink())):
                    sockets.add(match[1])
            except FileNotFoundError:
                continue
    addresses = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in sockets:
                addresses.add(fields[1].split(":")[0])
    return addresses


def test_an_app_runs_to_its_end_on_authenticated_nodes(
    deployment: Deployment, app: Path, tmp_path: Path
) -> None:
    config = {"text": "both \" and '", "rate": 1.0, "file": str(tmp_path / "file")}
    output = deployment.run(app, config=config)
    for i, site in enumerate(["a b", "c"]):
        node = [("num-partitions", 2), ("partition-id", i), ("site", site)]
        assert f"reply from {node} True" in output
    assert f"config {sorted(config.items())}" in output
    assert (tmp_path / "file").read_text() == "written by the ServerApp"


def test_a_failing_app_raises_with_its_log(deployment: Deployment, app: Path) -> None:
    with pytest.raises(DeploymentError, match=r"(?s)run-\d+\.log.*ValueError: asked to fail"):
        deployment.run(app, config={"text": "fail"})


def test_real_nodes_over_tls_end_in_the_bits_of_the_in_process_engine(
    deployment: Deployment, observed: Observed
) -> None:
    """Records tell the bytes.

    They are held against what passes Flower's own HTTP layer, where a hook in every process reads
    the lengths of the bodies that Flower sends and receives.  The nodes are warm.
    """
    assert len(workers_of(deployment.directory)) == deployment.nodes
    for run in ENDED:
        assert list(observed.runs.differences(*run)) == []
    records = [record for run in ENDED for record in in_process(*run, nodes=2, cohort=2).run()]
    messages = deployment.nodes * (ROUNDS + 1) * len(ENDED)  # one asks who each node is
    for way, passed in observed.passed.items():
        told = sum(getattr(record, f"bytes_{way}") for record in records)
        assert told < passed < told + messages * ENVELOPE, way


def test_clients_evaluate_and_hooks_and_history_work_over_tls(
    deployment: Deployment, tmp_path: Path
) -> None:
    assert run_quickstart(deployment, tmp_path / "model.pt", rounds=1) > 0.3


def test_the_log_of_a_run_on_real_nodes_has_its_records_as_json(observed: Observed) -> None:
    records = [record for run in ENDED for record in in_process(*run, nodes=2, cohort=2).run()]
    of_a_run = ["begin", *["round"] * ROUNDS, "end"]
    assert [event["event"] for event in observed.events] == of_a_run * len(ENDED)
    lines = [event for event in observed.events if event["event"] == "round"]
    for line, record in zip(lines, records, strict=True):
        told = json.loads(json.dumps(plain_record(record)))
        told["simulated_time"] = told.pop("time")
        timed = {key for key in told if "seconds" in key}
        assert {key: line[key] for key in told.keys() - timed} == {
            key: told[key] for key in told.keys() - timed
        }


def test_metrics_of_a_run_on_real_nodes_can_be_read_while_it_runs(observed: Observed) -> None:
    rounds = re.findall(r"^fedlada_round (\S+)$", "\n".join(observed.pages), re.MULTILINE)
    assert {"0.0", "1.0"} <= set(rounds)
    first = next(page for page in observed.pages if "\nfedlada_round 1.0\n" in page)
    assert '\nfedlada_replies_total{outcome="accepted",reason=""} 2.0\n' in first


def test_the_doctor_finds_the_deployment_sound(
    deployment: Deployment, capsys: pytest.CaptureFixture[str]
) -> None:
    """But for a certificate of a week, and for the Control API, which no proxy hides."""
    keys = deployment.directory / "keys"
    words = ["doctor", "--json", "--superlink", deployment.address, "--directory", str(keys)]
    words += ["--root-certificates", str(keys / "ca.crt"), "--free", "0.001"]
    words += ["--ssl-certfile", str(keys / "server.pem"), "--ssl-keyfile", str(keys / "server.key")]
    words += ["--auth-supernode-private-key", str(keys / "node-0")]
    with pytest.raises(SystemExit) as ended:
        main(words)
    found = json.loads(capsys.readouterr().out)["checks"]
    assert ended.value.code == 0, found
    states = {each["check"]: each["state"] for each in found}
    assert {check for check, state in states.items() if state == "warning"} == {
        *("server certificate", "connection", "control"),
    }
    assert {"authority", "health", "clock", "key", "disk"} <= states.keys()


def test_an_unregistered_key_is_refused(deployment: Deployment, tmp_path: Path) -> None:
    write_node_key(tmp_path / "stranger")
    code, log = deployment.try_node(key=tmp_path / "stranger")
    assert code == 1
    assert "Failed to activate SuperNode" in log


def test_a_node_without_a_key_is_refused(deployment: Deployment) -> None:
    code, log = deployment.try_node()
    assert code == 1
    assert "SuperNode authentication is enabled" in log


def test_plain_http_is_refused(deployment: Deployment) -> None:
    code, log = deployment.try_node(insecure=True)
    assert code == 1
    # No word from the SuperLink, not even an error: it does not speak without TLS.
    assert "Failed to initialize the connection" in log
    assert "[code:" not in log


def test_a_stopped_node_ends_its_worker_and_comes_back(
    deployment: Deployment, observed: Observed
) -> None:
    (worker,) = workers_of(deployment.directory / "node-1")
    deployment.stop_node(1)
    deadline = time.monotonic() + 10
    while worker in processes_of(deployment.directory):
        assert time.monotonic() < deadline, "the worker outlives its SuperNode"
        time.sleep(0.1)
    with pytest.raises(ValueError, match="SuperNode 1 is not running"):
        deployment.kill_node(1)
    deployment.start_node(1)


def test_it_listens_on_the_loopback_only(deployment: Deployment) -> None:
    pids = [pid for pid, _ in processes_of(deployment.directory).items()]
    assert listening_addresses(pids) == {"0100007F"}


def test_private_files_are_private(deployment: Deployment) -> None:
    keys = [deployment.directory / "keys" / name for name in ("server.key", "node-0", "node-1")]
    keys += deployment.directory.rglob("state.db")
    assert len(keys) == 4
    for key in keys[:3]:
        assert stat.S_IMODE(key.stat().st_mode) == 0o600
    for key in keys:
        assert stat.S_IMODE(key.parent.stat().st_mode) == 0o700


def test_an_interrupt_leaves_nothing_running(deployment: Deployment) -> None:
    """The last test of the deployment: it is over afterwards."""

    def interrupted() -> None:
        with ExitStack() as block:
            block.push(deployment)  # so that it is left as its own `with` block is
            deployment.kill_node(0)
            names = " ".join(processes_of(deployment.directory).values())
            assert "flower-superlink" in names
            assert names.count("/flower-supernode ") == deployment.nodes - 1
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert processes_of(deployment.directory) == {}


def test_as_many_node_configs_as_nodes(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="1 entries for 2 nodes"):
        Deployment(tmp_path, nodes=2, node_configs=[{}])
