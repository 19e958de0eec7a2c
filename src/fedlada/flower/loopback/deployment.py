"""Run a whole, secure Flower deployment on this machine's loopback.

It is for tests, benchmarks, and trying an app before it is deployed: a SuperLink with TLS,
SuperNode authentication and a database, and SuperNodes with a key each, all on 127.0.0.1::

    with Deployment(directory, nodes=3) as deployment:
        print(deployment.run("my-app", config={"rounds": 3}))

Its processes can be killed and started again, to test how an app handles it.

Everything it writes (keys, Flower homes, database, logs) is in `directory`. Everything it starts
is stopped when the `with` block is left, also by an interrupt or a SIGTERM. If this process is
killed, a small guardian process stops the rest.

:class:`RaySimulation` is the same for Flower's simulation, whose virtual nodes Ray runs.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

import tomli_w

from ...errors import FedladaError, require
from .certificates import (
    ServerCertificate,
    answers,
    write_node_key,
    write_server_certificate,
)
from .launcher import Launcher
from .processes import (
    GRACE,
    DeploymentError,
    Process,
    await_ready,
    free_port,
    log_error,
    sigterm_raises,
)
from .run import CONNECTION, Run, Value
from .supernodes import SuperNodes, supernode_command

__all__ = ["Deployment", "RaySimulation", "superlink_command"]

_STARTUP = 120.0  # seconds for a program of Flower's to come up on a busy machine


class Deployment:
    """A SuperLink and `nodes` SuperNodes on 127.0.0.1, for the duration of a `with` block.

    SuperNode i has the node config `partition-id=i num-partitions=nodes`.

    Args:
        directory: Where everything is written; it must not hold another deployment.
        nodes: The number of SuperNodes.
        node_configs: For each SuperNode, keys to add to its node config or to replace in it.
        environment: Variables that every process gets in addition.
        launcher: What starts the processes; by default as programs of this machine.
    """

    def __init__(
        self,
        directory: Path | str,
        *,
        nodes: int = 2,
        node_configs: Sequence[Mapping[str, Value]] | None = None,
        environment: Mapping[str, str] | None = None,
        launcher: Launcher | None = None,
    ) -> None:
        require(nodes >= 1, f"nodes is {nodes}; a deployment needs at least one SuperNode")
        configs = node_configs if node_configs is not None else [{}] * nodes
        require(
            len(configs) == nodes,
            f"node_configs has {len(configs)} entries for {nodes} nodes; give one each",
        )
        self.directory = Path(directory).resolve()
        self.nodes = nodes
        self.address = ""
        configs = [
            {"partition-id": i, "num-partitions": nodes} | dict(own)
            for i, own in enumerate(configs)
        ]
        # A relative path: the database is then in the SuperLink's home, which is private.
        self._superlink_options = ["--enable-supernode-auth", "--database", "state.db"]
        self._run_options: list[str] = []
        self._server_program = "flwr-serverapp"
        self._launcher = launcher or Launcher(self.directory, environment or {})
        self._cleanup = ExitStack()
        self._superlink: Process | None = None
        self._supernodes = SuperNodes(self._launcher, configs)

    def __enter__(self) -> Self:
        with ExitStack() as stack:  # an interrupted start too must leave nothing running
            stack.enter_context(sigterm_raises())
            stack.callback(self.stop)
            self._start()
            self._cleanup = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._cleanup.close()

    def stop(self) -> None:
        """Stop everything that was started: ask, wait a little, kill what is left."""
        try:
            self._supernodes.stop()
            if self._superlink is not None:
                self._superlink.ask()
                self._superlink.wait(GRACE)
        finally:
            self._launcher.close()
            self._superlink = None

    def run(
        self,
        app_dir: Path | str,
        *,
        config: Mapping[str, Value] | None = None,
        timeout: float = 600.0,
        show: Callable[[str], None] | None = None,
    ) -> str:
        """Run the app to its end with `flwr run --stream` and return what that printed.

        For `config` see `begin`; for `timeout` and `show` see :meth:`Run.wait`.
        """
        return self.begin(app_dir, config=config).wait(timeout=timeout, show=show)

    def begin(self, app_dir: Path | str, *, config: Mapping[str, Value] | None = None) -> Run:
        """Start the app with `flwr run --stream` and do not wait for its end.

        `config` replaces values of the app's `[tool.flwr.app.config]`.
        """
        name = self._launcher.numbered("run")
        command = ["flwr", "run", str(Path(app_dir).resolve()), CONNECTION, "--stream"]
        command += self._run_options
        if config:
            # A file: on the command line no string could hold both kinds of quotes.
            overrides = self.directory / f"{name}.toml"
            overrides.write_text(tomli_w.dumps(dict(config)))
            command += ["--run-config", str(overrides)]
        return Run(self.flwr, app_dir, self._launcher.start(name, command, home="cli"))

    def flwr(self, *arguments: str) -> str:
        """Run a command of `flwr`, such as `list`, and return what it printed."""
        name = self._launcher.numbered("flwr")
        process = self._launcher.start(name, ["flwr", *arguments], home="cli")
        code = process.finish(_STARTUP)
        if code != 0:
            raise log_error(f"flwr {' '.join(arguments)} failed with exit code {code}", process)
        return process.output()

    def server_apps(self) -> list[int]:
        """Return the processes of the ServerApps that are running."""
        return self._launcher.running(self._server_program)

    def kill_server_app(self) -> None:
        """Kill the ServerApp with SIGKILL, as a crash would.

        Nothing starts it again, but a new run of the same app can go on from its checkpoints at
        once. The SuperLink believes for most of a minute that the old run is still running.
        """
        require(bool(self._launcher.kill(self._server_program)), "no ServerApp is running")

    def start_node(self, i: int, *, timeout: float = 90.0, through: str | None = None) -> None:
        """Start SuperNode i and wait until the SuperLink has accepted it.

        The SuperLink refuses a node that it believes to be online, which it does for up to a
        minute after a `kill_node`: a refused node is started again until `timeout`.

        Args:
            i: The number of the SuperNode.
            timeout: Seconds until it must be accepted.
            through: The address of a proxy to connect to instead of the SuperLink's.
        """
        self._supernodes.start(
            i,
            through or self.address,
            authority=self._certificate.authority,
            key=self._key(i),
            timeout=timeout,
        )

    def stop_node(self, i: int) -> None:
        """Stop SuperNode i in order: it tells the SuperLink that it leaves."""
        process = self._supernodes.take(i)
        process.ask()
        process.finish(GRACE)

    def kill_node(self, i: int) -> None:
        """Kill SuperNode i and all of its children with SIGKILL, as a crash would."""
        self._supernodes.take(i).kill()

    def node_runs(self, i: int) -> bool:
        """Return whether SuperNode i was started and has not ended."""
        return self._supernodes.runs(i)

    def start_superlink(self) -> None:
        """Start the SuperLink, after `kill_superlink`: same address, same keys, same database."""
        require(self._superlink is None, "the SuperLink is running already; kill it first")
        command = superlink_command(self.address, self._certificate, self._superlink_options)
        self._superlink = self._launcher.start("superlink", command, home="superlink")
        await_ready(
            self._superlink,
            lambda: answers(self.address, self._certificate.authority),
            time.monotonic() + _STARTUP,
        )

    def kill_superlink(self) -> None:
        """Kill the SuperLink with SIGKILL, as a crash would.

        The ServerApps notice within seconds and end. SuperNodes stay, finish what they compute
        and connect again at most 20 seconds after the SuperLink is back.
        """
        if self._superlink is None:
            raise FedladaError("the SuperLink is not running")
        self._superlink.crash()
        self._superlink = None

    def try_node(
        self, *, key: Path | None = None, insecure: bool = False, timeout: float = _STARTUP
    ) -> tuple[int | None, str]:
        """Start a SuperNode that tries once to connect, and return its exit code and its log.

        Args:
            key: The private key that it shows, if any.
            insecure: Whether it speaks plain HTTP.
            timeout: Seconds after which it is killed; its exit code is then None.
        """
        name = self._launcher.numbered("try")
        authority = None if insecure else self._certificate.authority
        command = supernode_command(self.address, authority=authority, key=key)
        process = self._launcher.start(name, [*command, "--max-retries", "0"], home=name)
        code = process.finish(timeout)
        return code, process.output()

    def _start(self) -> None:
        keys, home = self.directory / "keys", self.directory / "cli"
        if keys.exists():
            raise DeploymentError(f"{self.directory} holds a deployment; take another directory")
        keys.mkdir(parents=True, mode=0o700)
        self._launcher.open()
        self._certificate = write_server_certificate(keys)
        self.address = f"127.0.0.1:{free_port()}"
        connection = {
            "address": self.address,
            "root-certificates": str(self._certificate.authority),
        }
        home.mkdir(mode=0o700)
        (home / "config.toml").write_text(
            tomli_w.dumps({"superlink": {"default": CONNECTION, CONNECTION: connection}})
        )
        self.start_superlink()
        self._start_nodes()

    def _start_nodes(self) -> None:
        for i in range(self.nodes):
            write_node_key(self._key(i))
            self.flwr("supernode", "register", str(self._key(i)) + ".pub", CONNECTION)
        deadline = time.monotonic() + _STARTUP
        for i in range(self.nodes):
            self._supernodes.begin(
                i, self.address, authority=self._certificate.authority, key=self._key(i)
            )
        for i in range(self.nodes):
            self._supernodes.await_online(i, deadline)

    def _key(self, i: int) -> Path:
        return self.directory / "keys" / f"node-{i}"


class RaySimulation(Deployment):
    """A SuperLink that runs apps on Ray with `nodes` virtual nodes, for a `with` block.

    Args:
        directory: As for a deployment.
        nodes: The number of virtual nodes.
        at_once: How many of them compute at once; by default one per core.  Ray starts a process
            for each, which imports the app.
        environment: As for a deployment.
    """

    def __init__(
        self,
        directory: Path | str,
        *,
        nodes: int = 10,
        at_once: int | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(directory, nodes=nodes, environment=environment)
        self._superlink_options = ["--simulation"]
        self._server_program = "flwr-simulation"
        options = f"num-supernodes={nodes} client-resources-num-cpus=1"
        if at_once is not None:
            options += f" init-args-num-cpus={at_once}"
        self._run_options = ["--federation-config", options]

    def _start_nodes(self) -> None:
        """Start none: Ray runs the nodes."""


def superlink_command(
    address: str, certificate: ServerCertificate, options: Sequence[str]
) -> list[str]:
    """Return the command of a SuperLink that listens on `address` and speaks TLS."""
    host, port = address.split(":")
    command = ["flower-superlink", "--host", host, "--port", port]
    command += ["--ssl-ca-certfile", str(certificate.authority)]
    command += ["--ssl-certfile", str(certificate.certificate)]
    command += ["--ssl-keyfile", str(certificate.key)]
    return [*command, *options]
