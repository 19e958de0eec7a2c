"""Start, stop and kill the SuperNodes of a deployment."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import tomli_w

from ...errors import FedladaError, require
from .launcher import Launcher
from .processes import GRACE, DeploymentError, Process, await_ready, free_port
from .run import Value

__all__ = ["SuperNodes", "supernode_command"]

_RETRY = 2.0  # seconds before a refused SuperNode is started again
_ACCEPTED = "SuperNode ID:"  # a SuperNode logs this once the SuperLink has let it in
_REFUSED = "Exit Code: 305"  # a SuperNode logs this last when the SuperLink refuses it


class SuperNodes:
    """The SuperNodes of a deployment, each with its own config, home and log.

    Args:
        launcher: Starts the processes.
        configs: The node config of each SuperNode.
    """

    def __init__(self, launcher: Launcher, configs: Sequence[Mapping[str, Value]]) -> None:
        self._launcher, self._configs = launcher, configs
        self._processes: dict[int, Process] = {}

    def begin(self, i: int, superlink: str, *, authority: Path, key: Path) -> None:
        """Start SuperNode i and do not wait for the SuperLink to accept it."""
        require(
            self._index(i) not in self._processes,
            f"SuperNode {i} is running already; stop or kill it first",
        )
        command = supernode_command(
            superlink, authority=authority, key=key, config=self._configs[i]
        )
        self._processes[i] = self._launcher.start(f"node-{i}", command, home=f"node-{i}")

    def await_online(self, i: int, deadline: float) -> None:
        """Wait until the SuperLink has accepted SuperNode i."""
        process = self._processes[i]
        await_ready(process, lambda: _ACCEPTED in process.output(), deadline)

    def start(self, i: int, superlink: str, *, authority: Path, key: Path, timeout: float) -> None:
        """Start SuperNode i, again if it is refused, until the SuperLink accepts it."""
        deadline = time.monotonic() + timeout
        while True:
            self.begin(i, superlink, authority=authority, key=key)
            try:
                return self.await_online(i, deadline)
            except DeploymentError:
                process = self._processes.pop(i)
                process.kill()
                if _REFUSED not in process.output() or time.monotonic() + _RETRY > deadline:
                    raise
            time.sleep(_RETRY)

    def take(self, i: int) -> Process:
        """Return the process of SuperNode i, which is then no longer one of these."""
        process = self._processes.pop(self._index(i), None)
        if process is None:
            raise FedladaError(f"SuperNode {i} is not running")
        return process

    def runs(self, i: int) -> bool:
        """Return whether SuperNode i was started and has not ended."""
        return self._index(i) in self._processes and self._processes[i].running()

    def stop(self) -> None:
        """Ask all SuperNodes to stop, and give them some time."""
        processes = list(self._processes.values())
        self._processes.clear()
        for process in processes:
            process.ask()
        for process in processes:
            process.wait(GRACE)

    def _index(self, i: int) -> int:
        nodes = len(self._configs)
        require(0 <= i < nodes, f"there is no SuperNode {i}; they are numbered 0 to {nodes - 1}")
        return i


def supernode_command(
    superlink: str,
    *,
    authority: Path | None,
    key: Path | None,
    config: Mapping[str, Value] | None = None,
) -> list[str]:
    """Return the command of a SuperNode.

    Args:
        superlink: The address that it connects to.
        authority: The certificate of the authority to trust; without it the node speaks HTTP.
        key: The private key that it shows, if any.
        config: Its node config.
    """
    command = ["flower-supernode", "--superlink", superlink]
    command += ["--host", "127.0.0.1", "--port", str(free_port())]
    command += ["--insecure"] if authority is None else ["--root-certificates", str(authority)]
    if key is not None:
        command += ["--auth-supernode-private-key", str(key)]
    if config:
        words = tomli_w.dumps(dict(config)).replace(" = ", "=").splitlines()
        command += ["--node-config", " ".join(words)]
    return command
