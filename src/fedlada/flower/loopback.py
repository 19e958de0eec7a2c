"""A whole, secure Flower deployment on this machine's loopback.

For tests, benchmarks, and trying an app before it is deployed: a SuperLink with TLS, SuperNode
authentication and a database, and SuperNodes with a key each, all on 127.0.0.1::

    with Deployment(directory, nodes=3) as deployment:
        print(deployment.run("my-app", config={"num-server-rounds": 3}))

Its pieces can be killed and started again, to see what an app makes of that.

Everything it writes (keys, Flower homes, database, logs) is in `directory`; everything it starts
is stopped when the `with` block is left, also by an interrupt or a SIGTERM, and when this process
is killed, for which a small process of its own stays on watch. Flower detaches some
of the processes it starts from their session, so a process group does not hold them all: each
child carries a mark in its environment, which its own children inherit, and is found through
/proc by that mark.
"""

import json
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import FrameType, TracebackType
from typing import Self

import tomli_w

from fedlada.flower.certificates import write_node_key, write_server_certificate
from fedlada.flower.processes import (
    GRACE,
    DeploymentError,
    Process,
    await_ready,
    free_port,
    guardian,
    kill_marked,
    log_error,
    marked,
)

__all__ = ["CONNECTION", "Deployment", "DeploymentError", "Run", "Simulation", "Value"]

Value = bool | int | float | str
"""What a run config or a node config may hold: Flower takes no lists."""

CONNECTION = "loopback"
"""The name of the connection in the config file that `flwr` reads."""

_MARK = "FEDLADA_LOOPBACK"
_STARTUP = 60.0  # seconds for a SuperLink or a SuperNode to come up on a busy machine
_RETRY = 2.0  # seconds before a refused SuperNode is started again
_ACCEPTED = "SuperNode ID:"  # what a SuperNode logs once the SuperLink has let it in
_REFUSED = "Exit Code: 305"  # a SuperNode's last words when the SuperLink turns it away
_OFFLINE = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    # 1 by default; at 0.1 the polling of two idle nodes takes a quarter of a core.
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.3",
    "RAY_USAGE_STATS_ENABLED": "0",
    "OMP_NUM_THREADS": "1",
    "PYTHONUNBUFFERED": "1",
}


class Run:
    """An app that runs: what :meth:`Deployment.begin` gives."""

    def __init__(self, deployment: "Deployment", app_dir: Path | str, process: Process) -> None:
        self._deployment, self._app_dir, self._process = deployment, app_dir, process

    def output(self) -> str:
        """What the run has printed so far; a killed ServerApp's last words may be missing."""
        return self._process.output()

    def running(self) -> bool:
        """Whether `flwr run` still waits for its end."""
        return self._process.running()

    def wait(self, *, timeout: float = 300.0, show: Callable[[str], None] | None = None) -> str:
        """Wait for its end and return what it printed.

        Each line is given to `show`, such as `print`, when it comes. A run that does not
        complete, or not within `timeout` seconds, is stopped and raises DeploymentError.
        """
        process, app_dir = self._process, self._app_dir
        code = process.finish(timeout, show)
        output = process.output()
        run_id = re.search(r"Successfully started run (\d+)", output)
        if code is None:
            if run_id is not None:
                self._deployment.flwr("stop", run_id[1], CONNECTION)
            raise log_error(f"The app {app_dir} did not end within {timeout:g} s", process)
        if code != 0 or run_id is None:
            raise log_error(f"flwr run of {app_dir} failed with exit code {code}", process)
        # The exit code of `flwr run` is 0 whatever became of the run.
        listed = self._deployment.flwr(
            "list", CONNECTION, "--run-id", run_id[1], "--format", "json"
        )
        status = json.JSONDecoder().raw_decode(listed, listed.index("{"))[0]["runs"][0]
        if status["status"] != "finished:completed":
            raise log_error(
                f"The run of {app_dir} ended as {status['status']}: {status['status-details']}",
                process,
            )
        return output

    def leave(self) -> None:
        """Look no longer: `flwr run` is killed, and the run itself is left to its fate."""
        self._process.kill()


class Deployment:
    """A SuperLink and `nodes` SuperNodes on 127.0.0.1, for the duration of a `with` block.

    SuperNode i has the node config `partition-id=i num-partitions=nodes` and whatever
    `node_configs[i]` adds or replaces; `environment` adds variables to every process.
    """

    def __init__(
        self,
        directory: Path | str,
        *,
        nodes: int = 2,
        node_configs: Sequence[Mapping[str, Value]] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        if nodes < 1:
            raise ValueError(f"nodes is {nodes}; a deployment needs at least one SuperNode")
        if node_configs is not None and len(node_configs) != nodes:
            raise ValueError(
                f"node_configs has {len(node_configs)} entries for {nodes} nodes; give one each"
            )
        self.directory = Path(directory).resolve()
        self.nodes = nodes
        self.address = ""
        self._configs = [
            {"partition-id": i, "num-partitions": nodes}
            | dict(node_configs[i] if node_configs else {})
            for i in range(nodes)
        ]
        self._environment = dict(environment or {})
        # A relative path: it lands in the SuperLink's own home, which others cannot read.
        self._superlink_options = ["--enable-supernode-auth", "--database", "state.db"]
        self._run_options: list[str] = []
        self._server_program = "flwr-serverapp"
        self._mark = uuid.uuid4().hex
        self._names: Counter[str] = Counter()
        self._handles = False
        self._guardian: subprocess.Popen[bytes] | None = None
        self._superlink: Process | None = None
        self._supernodes: dict[int, Process] = {}

    def __enter__(self) -> Self:
        # Left to itself, a SIGTERM ends Python at once, and not what Python has started.
        self._handles = (
            threading.current_thread() is threading.main_thread()
            and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        )
        if self._handles:
            signal.signal(signal.SIGTERM, _leave)
        try:
            self._start()
        except BaseException:  # an interrupt too must leave nothing running
            self.__exit__()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        try:
            self.stop()
        finally:
            if self._handles and signal.getsignal(signal.SIGTERM) is _leave:
                signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def stop(self) -> None:
        """Stop everything that was started: ask, wait a little, kill what is left."""
        try:
            for process in self._supernodes.values():
                process.ask()
            for process in self._supernodes.values():
                process.wait(GRACE)
            if self._superlink is not None:
                self._superlink.ask()
                self._superlink.wait(GRACE)
        finally:
            kill_marked(f"{_MARK}={self._mark}/")
            for process in self._supernodes.values():
                process.wait(GRACE)
            if self._superlink is not None:
                self._superlink.wait(GRACE)
            self._supernodes.clear()
            self._superlink = None
            if self._guardian is not None:
                self._guardian.communicate()
                self._guardian = None

    def run(
        self,
        app_dir: Path | str,
        *,
        config: Mapping[str, Value] | None = None,
        timeout: float = 300.0,
        show: Callable[[str], None] | None = None,
    ) -> str:
        """Run the app to its end with `flwr run --stream` and return what that printed.

        `config`, `timeout` and `show` are those of `begin` and of :meth:`Run.wait`.
        """
        return self.begin(app_dir, config=config).wait(timeout=timeout, show=show)

    def begin(self, app_dir: Path | str, *, config: Mapping[str, Value] | None = None) -> Run:
        """Start the app with `flwr run --stream` and do not wait for its end.

        `config` replaces values of the app's `[tool.flwr.app.config]`.
        """
        name = self._number("run")
        command = ["flwr", "run", str(Path(app_dir).resolve()), CONNECTION, "--stream"]
        command += self._run_options
        if config:
            # A file: on the command line no string could hold both kinds of quotes.
            overrides = self.directory / f"{name}.toml"
            overrides.write_text(tomli_w.dumps(dict(config)))
            command += ["--run-config", str(overrides)]
        return Run(self, app_dir, self._spawn(name, command, home="cli"))

    def server_apps(self) -> list[int]:
        """The processes of the ServerApps that are running."""
        return list(marked(f"{_MARK}={self._mark}/", self._server_program))

    def kill_server_app(self) -> None:
        """Kill the ServerApp with SIGKILL, as a crash would.

        Nothing starts it again, but a new run of the same app can go on from its checkpoints at
        once; the SuperLink takes the old one for running for most of a minute.
        """
        if not kill_marked(f"{_MARK}={self._mark}/", self._server_program):
            raise ValueError("no ServerApp is running")

    def start_node(self, i: int, *, timeout: float = 90.0, through: str | None = None) -> None:
        """Start SuperNode i and wait until the SuperLink has accepted it.

        The SuperLink refuses a node that it believes to be online, which it does for up to a
        minute after a `kill_node`: a refused node is started again until `timeout`. With
        `through` the node connects to that address, of a proxy, and not to the SuperLink's.
        """
        deadline = time.monotonic() + timeout
        while True:
            self._begin_node(i, through)
            try:
                return _await_online(self._supernodes[i], deadline)
            except DeploymentError:
                refused = _REFUSED in self._supernodes[i].output()
                self._supernodes.pop(i).kill()
                if not refused or time.monotonic() + _RETRY > deadline:
                    raise
            time.sleep(_RETRY)

    def stop_node(self, i: int) -> None:
        """Stop SuperNode i in order: it takes leave of the SuperLink."""
        process = self._supernodes.pop(self._index(i), None)
        if process is None:
            raise ValueError(f"SuperNode {i} is not running")
        process.ask()
        process.finish(GRACE)

    def node_runs(self, i: int) -> bool:
        """Whether SuperNode i was started and has not ended."""
        return self._index(i) in self._supernodes and self._supernodes[i].running()

    def kill_node(self, i: int) -> None:
        """Kill SuperNode i and all of its children with SIGKILL, as a crash would."""
        process = self._supernodes.pop(self._index(i), None)
        if process is None:
            raise ValueError(f"SuperNode {i} is not running")
        process.kill()

    def start_superlink(self) -> None:
        """Start the SuperLink, after `kill_superlink`: same address, same keys, same database."""
        if self._superlink is not None:
            raise ValueError("the SuperLink is running already; kill it first")
        host, port = self.address.split(":")
        command = ["flower-superlink", "--host", host, "--port", port]
        command += ["--ssl-ca-certfile", str(self._certificate.authority)]
        command += ["--ssl-certfile", str(self._certificate.certificate)]
        command += ["--ssl-keyfile", str(self._certificate.key)]
        command += self._superlink_options
        self._superlink = self._spawn("superlink", command, home="superlink")
        await_ready(self._superlink, self._answers, time.monotonic() + _STARTUP)

    def kill_superlink(self) -> None:
        """Kill the SuperLink with SIGKILL, as a crash would.

        The ServerApps see that within seconds and end. SuperNodes stay, finish what they compute
        and ask for the SuperLink again, at most 20 seconds after it is back.
        """
        if self._superlink is None:
            raise ValueError("the SuperLink is not running")
        self._superlink.crash()
        self._superlink = None

    def try_node(
        self, *, key: Path | None = None, insecure: bool = False, timeout: float = 30.0
    ) -> tuple[int | None, str]:
        """Start a SuperNode of any kind and see what becomes of it: exit code and log.

        With `key` it shows that private key, with `insecure` it speaks plain HTTP; it tries to
        connect once. Whatever still runs after `timeout` seconds is killed and has no exit code.
        """
        name = self._number("try")
        command = self._node_command(key=key, insecure=insecure)
        process = self._spawn(name, [*command, "--max-retries", "0"], home=name)
        code = process.finish(timeout)
        return code, process.output()

    def flwr(self, *arguments: str) -> str:
        """Run a command of `flwr`, such as `list`, and return what it printed."""
        process = self._spawn(self._number("flwr"), ["flwr", *arguments], home="cli")
        code = process.finish(_STARTUP)
        if code != 0:
            raise log_error(f"flwr {' '.join(arguments)} failed with exit code {code}", process)
        return process.output()

    def _start(self) -> None:
        keys = self.directory / "keys"
        if keys.exists():
            raise DeploymentError(f"{self.directory} holds a deployment; take another directory")
        keys.mkdir(parents=True, mode=0o700)
        (self.directory / "logs").mkdir(mode=0o700)
        self._guardian = guardian(f"{_MARK}={self._mark}/")
        self._certificate = write_server_certificate(keys)
        for i in range(self.nodes):
            write_node_key(self._key(i))
        port = free_port()
        self.address = f"127.0.0.1:{port}"
        home = self.directory / "cli"
        home.mkdir(mode=0o700)
        connection = {
            "address": self.address,
            "root-certificates": str(self._certificate.authority),
        }
        (home / "config.toml").write_text(
            tomli_w.dumps({"superlink": {"default": CONNECTION, CONNECTION: connection}})
        )
        self.start_superlink()
        self._start_nodes()

    def _start_nodes(self) -> None:
        for i in range(self.nodes):
            self.flwr("supernode", "register", str(self._key(i)) + ".pub", CONNECTION)
        deadline = time.monotonic() + _STARTUP
        for i in range(self.nodes):
            self._begin_node(i)
        for i in range(self.nodes):
            _await_online(self._supernodes[i], deadline)

    def _answers(self) -> bool:
        context = ssl.create_default_context(cafile=str(self._certificate.authority))
        host, port = self.address.split(":")
        try:
            with (
                socket.create_connection((host, int(port)), timeout=5) as plain,
                context.wrap_socket(plain, server_hostname=host),
            ):
                return True
        except ConnectionRefusedError:
            return False

    def _begin_node(self, i: int, through: str | None = None) -> None:
        if self._index(i) in self._supernodes:
            raise ValueError(f"SuperNode {i} is running already; stop or kill it first")
        command = self._node_command(key=self._key(i), through=through)
        config = " ".join(tomli_w.dumps(self._configs[i]).replace(" = ", "=").splitlines())
        self._supernodes[i] = self._spawn(
            f"node-{i}", [*command, "--node-config", config], home=f"node-{i}"
        )

    def _node_command(
        self, *, key: Path | None, insecure: bool = False, through: str | None = None
    ) -> list[str]:
        command = ["flower-supernode", "--superlink", through or self.address]
        command += ["--host", "127.0.0.1", "--port", str(free_port())]
        if insecure:
            command += ["--insecure"]
        else:
            command += ["--root-certificates", str(self._certificate.authority)]
        if key is not None:
            command += ["--auth-supernode-private-key", str(key)]
        return command

    def _spawn(self, name: str, command: Sequence[str], *, home: str) -> Process:
        working = self.directory / home
        working.mkdir(mode=0o700, exist_ok=True)
        programs = Path(sys.executable).parent
        # Flower's own variables come from here alone, not from the shell of whoever calls.
        environment = {k: v for k, v in os.environ.items() if not k.startswith("FLWR_")}
        environment |= _OFFLINE | self._environment
        # Every task is a new process, which should not compile this package anew.
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        # Flower finds its programs, and the apps find this package, from another directory.
        environment["PATH"] = os.pathsep.join([str(programs), environment.get("PATH", "")])
        if "PYTHONPATH" in environment:
            entries = environment["PYTHONPATH"].split(os.pathsep)
            environment["PYTHONPATH"] = os.pathsep.join(str(Path(e).resolve()) for e in entries)
        environment["FLWR_HOME"] = str(working)
        mark = f"{_MARK}={self._mark}/{name}"
        environment[_MARK] = mark.partition("=")[2]
        log = self.directory / "logs" / f"{name}.log"
        program = programs / command[0]
        if not program.exists():
            raise DeploymentError(f"There is no {program}; install Flower where this Python is")
        arguments = [str(program), *command[1:]]
        return Process(arguments, log=log, environment=environment, directory=working, mark=mark)

    def _number(self, name: str) -> str:
        self._names[name] += 1
        return f"{name}-{self._names[name]}"

    def _key(self, i: int) -> Path:
        return self.directory / "keys" / f"node-{i}"

    def _index(self, i: int) -> int:
        if not 0 <= i < self.nodes:
            raise ValueError(f"there is no SuperNode {i}; they are numbered 0 to {self.nodes - 1}")
        return i


class Simulation(Deployment):
    """Flower's simulation engine (Ray) on this machine, with `nodes` virtual nodes."""

    def __init__(
        self,
        directory: Path | str,
        *,
        nodes: int = 10,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(directory, nodes=nodes, environment=environment)
        self._superlink_options = ["--simulation"]
        self._server_program = "flwr-simulation"
        options = f"num-supernodes={nodes} client-resources-num-cpus=1"
        self._run_options = ["--federation-config", options]

    def _start_nodes(self) -> None:
        """Nodes are virtual: Ray runs them."""


def _leave(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


def _await_online(process: Process, deadline: float) -> None:
    await_ready(process, lambda: _ACCEPTED in process.output(), deadline)
