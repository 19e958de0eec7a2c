"""The process that keeps a ClientApp loaded: ``python -m fedlada.flower.warm.worker``.

It answers one message after another.  It ends with its SuperNode, when its node begins another run,
when the process that waits for a reply ends, or when no message arrives for a while and it holds no
secrets of a round.
"""

from __future__ import annotations

import json
import os
import select
import socket
import sys
import threading
import time
import traceback
from contextlib import suppress
from typing import Any

import torch
from flwr.clientapp import ClientApp

from ...errors import FedladaError
from .. import masks
from ..private_api import packed, set_task, unpacked
from . import keeping
from .app import load
from .local_socket import check_peer, given_up, receive, send

__all__ = ["main"]

ARRIVAL = 60.0
"""Seconds that another process may pause while it sends a message or reads a reply."""
_LOOK = 0.5  # seconds between two looks whether the SuperNode and the ClientApp's process live


class Watch:
    """Ends this process when nobody needs it, also in the middle of a message."""

    def __init__(self, node: int) -> None:
        self._waiting: socket.socket | None = None
        self._lock = threading.Lock()
        self._node = node
        # A process number can be reused; a descriptor always refers to the same process.
        self._descriptor = os.pidfd_open(node) if hasattr(os, "pidfd_open") else None
        threading.Thread(target=self._look, daemon=True).start()

    def await_reply(self, connection: socket.socket | None) -> None:
        """Set the connection that awaits a reply; if it closes, nobody needs the answer."""
        with self._lock:
            self._waiting = connection

    def _look(self) -> None:
        while self._node_lives():
            time.sleep(_LOOK)
            with self._lock:
                if self._waiting is not None and given_up(self._waiting):
                    break
        # Without cleaning up: a client's files are written completely or not at all.
        os._exit(0)

    def _node_lives(self) -> bool:
        if self._descriptor is not None:
            return not select.select([self._descriptor], [], [], 0)[0]
        try:
            os.kill(self._node, 0)
        except ProcessLookupError:
            return False
        return True


class Worker:
    """Answers messages with the app of a reference."""

    def __init__(self, reference: str) -> None:
        self._reference = reference
        self._loaded: tuple[ClientApp, torch.Tensor] | None = None

    def answer(self, task: bytes, message: bytes, context: bytes) -> tuple[bytes, bytes, bytes]:
        """Return an error, or nothing, and the reply and the context as bytes."""
        try:
            set_task(*json.loads(task))
            received, state = unpacked(message, context)
            if self._loaded is None:
                self._loaded = load(self._reference), torch.get_rng_state()
            app, random = self._loaded
            torch.set_rng_state(random)  # as in the new process that a cold node starts
            return (b"", *packed(app(received, state), state))
        except Exception as error:  # the ClientApp's process raises it
            traceback.print_exc()
            return f"{type(error).__name__}: {error}".encode(), b"", b""


def serve(connection: socket.socket, worker: Worker, watch: Watch) -> bool:
    """Answer a message; return False if the worker was asked to end."""
    check_peer(connection)
    connection.settimeout(ARRIVAL)
    (task,) = receive(connection, 1)
    if not task:
        return False
    message, context = receive(connection, 2)
    send(connection, b"")
    connection.settimeout(None)  # training may take any time, and Watch must not wait for data
    watch.await_reply(connection)
    parts = worker.answer(bytes(task), bytes(message), bytes(context))
    watch.await_reply(None)
    connection.settimeout(ARRIVAL)
    send(connection, *parts)
    return True


def main(settings: dict[str, Any]) -> None:
    """Serve until no message arrives for the idle time."""
    keeping.begin()
    watch, worker = Watch(settings["node"]), Worker(settings["reference"])
    with socket.socket(fileno=settings["listener"]) as listener:
        listener.settimeout(settings["idle"])
        more = True
        while more:
            try:
                connection, _ = listener.accept()
            except TimeoutError:
                if masks.under_way():  # others may train for longer, and then it is asked again
                    continue
                return
            # A stranger, or a process that ended or stopped before it had sent its message.
            with connection, suppress(FedladaError):
                more = serve(connection, worker, watch)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
