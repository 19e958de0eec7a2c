"""The worker of a node: where it listens, how it is started, and how it gets a message.

The ClientApp's process opens the socket and passes it on, so nobody has to wait for the worker: the
kernel keeps what is sent before it is up.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from flwr.app import Context, Message

from ...errors import FedladaError
from ..home import private_directory
from ..private_api import current_task, packed, unpacked
from .local_socket import (
    ConnectionEnded,
    ConnectionSilent,
    connect,
    listen,
    receive,
    send,
)

__all__ = ["DIRECTORY", "NodeWorker", "WorkerFailed"]

DIRECTORY = "fedlada-warm"
"""The folder in FLWR_HOME with the sockets and the logs of the workers."""


log = logging.getLogger("fedlada")

BEGIN = 300.0
"""Seconds until a worker must have begun with a message; a new one first imports torch."""


class WorkerFailed(FedladaError):
    """The app raised an error in the worker, or the worker ended."""


class NodeWorker:
    """The worker for one app in one run on this node.

    Args:
        reference: The app that it keeps loaded.
        context: The context of a message: its node and its run.
        idle: Seconds without a message after which the worker ends.
    """

    def __init__(self, reference: str, context: Context, *, idle: float) -> None:
        self._reference, self._idle = reference, idle
        self._directory = private_directory(DIRECTORY)
        self._node = f"{context.node_id:x}"
        # The parent, SuperExec, lives as long as the SuperNode; the path has the app's version.
        what = [os.getppid(), context.run_id, reference, sys.path]
        name = hashlib.sha256(json.dumps(what).encode()).hexdigest()[:16]
        self._socket = self._directory / f"{self._node}-{name}.sock"
        self._log, self._shown = self._directory / f"{self._node}.log", 0

    def answer(self, message: Message, context: Context) -> Message:
        """Return the worker's reply, and copy the worker's state into the context."""
        parts = (json.dumps(current_task()).encode(), *packed(message, context))
        try:
            error, reply, after = self._exchange(parts)
        finally:
            self._show_log()
        if error:
            raise WorkerFailed(error.decode())
        answered, changed = unpacked(bytes(reply), bytes(after))
        context.state = changed.state
        return answered

    def _exchange(self, parts: tuple[bytes, ...]) -> list[bytearray]:
        """Send the message to the worker, or to a new one if the first ended before it began."""
        for _ in range(2):
            with self._connected() as connection:
                try:
                    connection.settimeout(BEGIN)
                    send(connection, *parts)
                    receive(connection, 1)  # an empty part: it has begun
                except ConnectionSilent:
                    log.warning(
                        "this node's worker has not taken a message for %.0f s, so another is"
                        " started; the first may be stopped, or its connection held by another"
                        " process of this user",
                        BEGIN,
                    )
                    self._socket.unlink(missing_ok=True)  # whoever listens there is not asked again
                    continue
                except ConnectionEnded:
                    continue
                try:
                    connection.settimeout(None)  # training may take any time
                    return receive(connection, 3)
                except ConnectionEnded:
                    raise WorkerFailed(
                        f"this node's worker ended while it computed; the end of {self._log} may"
                        " say why, and the next message starts another"
                    ) from None
        raise WorkerFailed(
            f"this node's worker ends, or stands still, at its start; {self._log} may say why"
        )

    @contextmanager
    def _connected(self) -> Iterator[socket.socket]:
        """Connect to the worker; start it if there is none."""
        with open(self._directory / f"{self._node}.lock", "w", opener=_private) as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            connection = connect(self._socket)
            if connection is not None:
                self._shown = self._log.stat().st_size
            else:
                self._start()
                connection = connect(self._socket)
        if connection is None:
            raise WorkerFailed(f"this node's worker ends at its start; {self._log} says why")
        with connection:
            yield connection

    def _start(self) -> None:
        again = self._socket.exists()  # it ended in the middle of this run
        for other in self._directory.glob(f"{self._node}-*.sock"):
            if other != self._socket:
                _end(other)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | (0 if again else os.O_TRUNC)
        log = os.open(self._log, flags, 0o600)
        self._shown = os.fstat(log).st_size
        settings = {"reference": self._reference, "node": os.getppid(), "idle": self._idle}
        with listen(self._socket) as listener:
            settings["listener"] = listener.fileno()
            command = [sys.executable, "-u", "-P", "-m", f"{__package__}.worker"]
            # The worker does not get Flower's pipes: Flower waits until they are closed.
            subprocess.Popen(
                [*command, json.dumps(settings)],
                env=_environment(),
                pass_fds=[listener.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        os.close(log)

    def _show_log(self) -> None:
        """Print the worker's output for this message, so that the node's log has it, too."""
        if self._log.exists():
            with self._log.open("rb") as log:
                log.seek(self._shown)
                sys.stderr.write(log.read().decode(errors="replace"))


def _environment() -> dict[str, str]:
    """Return what the worker gets of this process's environment.

    Flower's own variables may hold credentials, and a worker outlives the process that starts it.
    The others may be what the app reads, such as the place of its data.
    """
    keep = ("FLWR_HOME", "FLWR_PRIVATE_")
    own = {k: v for k, v in os.environ.items() if not k.startswith("FLWR_") or k.startswith(keep)}
    return own | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


def _end(path: Path) -> None:
    """Ask the worker of an earlier run or app to end as soon as it has nothing to do."""
    connection = connect(path)
    if connection is not None:
        with connection, suppress(ConnectionEnded):
            send(connection, b"")
    path.unlink(missing_ok=True)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
