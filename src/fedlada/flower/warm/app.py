"""A ClientApp that imports no torch: it passes every message to a worker that stays loaded.

Flower starts a process for every message.  The worker lives as long as the SuperNode, and imports
the real app when the first message arrives.
"""

from __future__ import annotations

import socket
import sys
from pathlib import Path

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from ...errors import require
from ...named import find

__all__ = ["IDLE", "WarmApp", "load", "warm_app"]

IDLE = 600.0
"""Seconds without a message after which a worker ends."""
_ONE_MESSAGE = "flwr-clientapp"
"""The program that Flower starts for every message."""


def warm_app(reference: str, *, idle: float = IDLE) -> ClientApp:
    """Make a ClientApp that keeps another one loaded between the messages of a run.

    ``reference`` names it as an app's pyproject.toml would, such as ``"my_app.client:app"``.  The
    module that calls this function must not import torch, and neither must its package.  A worker
    without a message for ``idle`` seconds ends; the next message starts another.

    Where Flower starts no process per message (on Ray, say) the app is called directly.
    """
    module, _, attribute = reference.partition(":")
    require(
        bool(module and attribute),
        f"reference is {reference!r}; name the app as module:object, such as my_app.client:app",
    )
    require(idle > 0, f"idle is {idle}; give the seconds after which an unused worker ends")
    return WarmApp(reference, idle)


class WarmApp(ClientApp):
    """Passes every message to the worker of its node, or to the app itself."""

    def __init__(self, reference: str, idle: float) -> None:
        super().__init__()
        self._reference, self._idle = reference, idle

    def __call__(self, message: Message, context: Context) -> Message:
        if Path(sys.argv[0]).name != _ONE_MESSAGE or not hasattr(socket, "AF_UNIX"):
            return load(self._reference)(message, context)
        from .node import NodeWorker  # Windows lacks what it needs

        return NodeWorker(self._reference, context, idle=self._idle).answer(message, context)


def load(reference: str) -> ClientApp:
    """Import the app that a reference names."""
    app = find(reference, "ClientApp")
    require(
        isinstance(app, ClientApp) and not isinstance(app, WarmApp),
        f"{reference} is {type(app).__name__}; a warm app needs an ordinary ClientApp",
    )
    assert isinstance(app, ClientApp)
    return app
