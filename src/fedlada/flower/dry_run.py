"""A dry run before a node joins a federation: one round of its app in this process.

The app's ClientApp trains on this node's data, a server in memory accepts its reply, and nothing
leaves the machine.
"""

from __future__ import annotations

import copy
import re
import tomllib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flwr.app import Message
from flwr.clientapp import ClientApp
from torch import nn

from ..errors import FedladaError, require
from ..named import find
from ..server.plan import Plan
from ..server.record import RoundRecord
from ..server.server import Server
from .attendance import failed
from .context_store import STATE_DIRECTORY
from .grid import GridEngine
from .masks import IDENTITY, identity_of
from .memory_grid import MemoryGrid
from .server import ServerConfig
from .tree.leaves import Leaves

__all__ = ["node_settings", "rehearse"]


@dataclass(frozen=True)
class Only:
    """Draws one client."""

    client: int

    def cohort(self, seed: int, round: int, clients: int, busy: Collection[int] = ()) -> list[int]:
        return [self.client]


class Talkative(MemoryGrid):
    """A grid that remembers the errors of its nodes."""

    errors: tuple[str, ...] = ()

    def reply(self, message: Message) -> Message | None:
        reply = super().reply(message)
        if reply is not None and reply.has_error():
            failure = failed(0, reply.error)
            self.errors += (failure.cause or failure.reason,)
        return reply


def rehearse(app_dir: Path, node: str, model: Callable[[], nn.Module]) -> RoundRecord:
    """Run one round of the app in a directory, as the node with this ``--node-config``.

    Nothing is kept on disk: the client's vectors are in memory, whatever the config says.  There
    are no masks, which one node cannot have, but its keys for them are read.
    """
    client_app, config = _app(app_dir)
    settings = node_settings(node)
    for key in ("partition-id", "num-partitions"):
        require(
            isinstance(settings.get(key), int),
            f"the node's config {node!r} has no number as {key}; give it as for flower-supernode,"
            " such as 'partition-id=0 num-partitions=10'",
        )
    client, partitions = settings["partition-id"], settings["num-partitions"]
    require(
        0 <= client < partitions,
        f"partition-id is {client} and num-partitions is {partitions}; nodes are numbered from 0 to"
        f" {partitions - 1}",
    )
    identity_of(settings)  # which reads the keys
    for key in (STATE_DIRECTORY, *IDENTITY):
        settings.pop(key, None)
    grid = Talkative(
        client_app, nodes=1, node_config=settings, run_config={**config, "state-directory": ""}
    )
    server_config = ServerConfig.read(config)
    asked, clients = server_config.plan, server_config.clients or None
    plan = Plan(  # only settings that concern a client, not how the server combines replies
        algorithm=asked.algorithm,
        buffers=asked.buffers,
        personal=asked.personal,
        codec=asked.codec,
        seed=asked.seed,
        rounds=1,
        cohort=Only(client),
    )
    network = model()
    server = Server(plan, copy.deepcopy(network), watch=list)
    try:
        engine = GridEngine.of(
            plan, grid, network, nodes=1, wait=1.0, clients=clients, partitions=partitions
        )
        collector = Leaves(plan, engine) if clients else None
        record = next(iter(server.rounds(engine, collector=collector)))
    except FedladaError as error:
        raise FedladaError("; ".join([str(error), *grid.errors])) from error
    require(
        record.accepted == 1,
        "the node's reply was not accepted: "
        + "; ".join([*record.failures, *record.rejected, *grid.errors]),
    )
    return record


def node_settings(text: str) -> dict[str, Any]:
    """Read a ``--node-config``, such as ``partition-id=0 site="a b"``."""
    lines = re.sub(r"\s+(?=[\w-]+\s*=)", "\n", text.strip())
    try:
        return tomllib.loads(lines)
    except tomllib.TOMLDecodeError as error:
        raise FedladaError(
            f"{text!r} is no node config ({error}); write it as for flower-supernode, such as"
            " 'partition-id=0 num-partitions=10', and texts in double quotes"
        ) from None


def _app(directory: Path) -> tuple[ClientApp, Mapping[str, Any]]:
    file = directory / "pyproject.toml"
    try:
        table = tomllib.loads(file.read_text())["tool"]["flwr"]["app"]
        name, config = table["components"]["clientapp"], table.get("config", {})
    except (OSError, KeyError, tomllib.TOMLDecodeError) as error:
        raise FedladaError(
            f"{file} describes no Flower app ({error}); give the app's directory with --app"
        ) from None
    app = find(name, "ClientApp")
    if not isinstance(app, ClientApp):
        raise FedladaError(f"{name} of {file} is a {type(app).__name__}, not a ClientApp")
    return app, config
