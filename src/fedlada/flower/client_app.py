"""The client side on Flower: a ready ClientApp, and a context manager for one that exists."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from flwr.app import ArrayRecord, ConfigRecord, ConfigRecordValues, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from torch import nn

from ..algorithms import Algorithm, Vectors, algorithm as by_name, require
from ..client import D, LocalRound, Train, recall, seeded, train_client
from ..store import DiskStore, Store, Version, choose, needless
from .records import HEADER, Assignment, Manifest, pack, read_task, reply_record, unpack

__all__ = ["ClientRound", "answer_query", "client_app", "training"]

STATE_DIRECTORY = "state-directory"
"""The key of a node's config that says where its clients' vectors are kept on disk."""

KEPT = "fedlada.kept."


def client_app(
    model: Callable[[], nn.Module], data: Callable[[Context], D], train: Train[D]
) -> ClientApp:
    """A ClientApp that serves every algorithm.

    ``model()`` builds the model the server builds, ``data(context)`` gives this node's data
    (``context.node_config["partition-id"]`` says whose), and ``train(model, data, optimizer)``
    is a training loop such as :class:`fedlada.LocalTraining`.
    """
    app = ClientApp()
    app.query()(answer_query)

    @app.train()
    def reply(message: Message, context: Context) -> Message:
        own = model()
        client, assignment, manifest = read_task(message.content, own)
        require(
            client == client_number(context),
            f"the task is for client {client}, and data(context) is that of client"
            f" {client_number(context)}; a node of several clients trains inside training(...)",
        )
        result = train_client(
            agreed(assignment, context),
            own,
            assignment.task,
            client=client,
            data=data(context),
            train=train,
            store=client_store(manifest, context),
            buffers=assignment.buffers,
        )
        return Message(reply_record(result), reply_to=message)

    return app


class ClientRound:
    """One round of an existing ClientApp: its optimizer, and the reply when training is done."""

    def __init__(self, local: LocalRound, client: int) -> None:
        self._local = local
        self.client = client
        """Whose data to train on: the node's partition id, unless nodes have several clients."""
        self.optimizer = local.optimizer
        self.lr = local.lr
        self.examples = 1
        """How many examples were trained on; it weights the reply if the server weights."""
        self.metrics: Mapping[str, float] = {}
        self.reply: Message
        """The message to return, once the block has ended."""


@contextmanager
def training(message: Message, context: Context, model: nn.Module) -> Iterator[ClientRound]:
    """Around the training in an ``@app.train()`` function.

    >>> with training(message, context, model) as local:
    ...     train(model, loader, local.optimizer())
    >>> return local.reply
    """
    client, assignment, manifest = read_task(message.content, model)
    check_place(client, context)
    task, buffers = assignment.task, assignment.buffers
    algorithm, store = agreed(assignment, context), client_store(manifest, context)
    kept = recall(store, algorithm, task, client=client, buffers=buffers)
    local = LocalRound(algorithm, model, task, client=client, kept=kept, buffers=buffers)
    mine = ClientRound(local, client)
    with seeded(task, client):
        yield mine
    reply = local.finish(examples=mine.examples, metrics=mine.metrics)
    if local.kept:
        store.stage(client, (task.run, task.round), local.kept)
    mine.reply = Message(reply_record(reply), reply_to=message)


def answer_query(message: Message, context: Context) -> Message:
    """Tell the server which client this node is; an existing app registers it for ``query``."""
    header: dict[str, ConfigRecordValues] = {
        "client": client_number(context),
        "clients": node_count(context),
    }
    return Message(RecordDict({HEADER: ConfigRecord(header)}), reply_to=message)


def client_number(context: Context) -> int:
    """The number of the client on this node: its partition id."""
    require(
        "partition-id" in context.node_config,
        f"this node's config has {', '.join(context.node_config) or 'nothing'} and no"
        " partition-id; start the SuperNode with --node-config 'partition-id=0 num-partitions=3'",
    )
    return int(context.node_config["partition-id"])


def node_count(context: Context) -> int:
    """How many nodes there are, as this one was told; 0 if it was not."""
    return int(context.node_config.get("num-partitions", 0))


def check_place(client: int, context: Context) -> None:
    """Of n nodes this one has the client of its own number, and every n-th after it."""
    node, nodes = client_number(context), node_count(context)
    require(
        node == (client % nodes if nodes else client),
        f"the task is for client {client}, who is not on node {node} of {nodes}; give every"
        " SuperNode a partition-id of its own and all the same num-partitions",
    )


def agreed(assignment: Assignment, context: Context) -> Algorithm:
    """The algorithm the server named.

    Code of somebody else's is imported only if this node's own run config names it too.
    """
    name, settings = json.loads(assignment.algorithm)
    require(
        not isinstance(name, str) or ":" not in name or context.run_config.get("algorithm") == name,
        f"the server names the outside algorithm {name!r}, which is not in this run's config;"
        " set algorithm in the app's config",
    )
    return by_name(name, **settings)


def client_store(manifest: Manifest, context: Context) -> Store:
    """Where this node's client keeps its vectors.

    The node says where on disk; in a simulation, whose nodes have no config of their own, the
    run does.
    """
    directory = context.node_config.get(STATE_DIRECTORY) or context.run_config.get(STATE_DIRECTORY)
    return DiskStore(str(directory)) if directory else ContextStore(context, manifest)


class ContextStore:
    """Client vectors in Flower's ``Context.state``: they last as long as the node's process."""

    def __init__(self, context: Context, manifest: Manifest) -> None:
        self._state, self._manifest = context.state, manifest

    def load(self, client: int, version: Version | None = None) -> Vectors:
        found = choose(client, self._versions(client), version)
        if found is None:
            return Vectors()
        kept = self._state[_key(client, found)]
        assert isinstance(kept, ArrayRecord)
        return unpack(kept, self._manifest)

    def stage(self, client: int, version: Version, kept: Vectors) -> None:
        self._state[_key(client, version)] = pack(kept)

    def settle(self, client: int, version: Version, epoch: int) -> None:
        for old in needless(self._versions(client), version, epoch):
            del self._state[_key(client, old)]

    def _versions(self, client: int) -> list[Version]:
        own = f"{KEPT}{client}."
        names = [
            key.removeprefix(own).rpartition("-") for key in self._state if key.startswith(own)
        ]
        return [(run, int(round)) for run, _, round in names]


def _key(client: int, version: Version) -> str:
    return f"{KEPT}{client}.{version[0]}-{version[1]}"
