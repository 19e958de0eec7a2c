"""The client side on Flower: a ready ClientApp, and a context manager for one that exists."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from flwr.app import ArrayRecord, ConfigRecord, ConfigRecordValues, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from torch import nn

from ..algorithms import Algorithm, Vectors, algorithm as by_name, require
from ..client import D, LocalRound, Train, seeded, train_client
from ..store import DiskStore, Store
from .records import HEADER, Assignment, Manifest, pack, read_task, reply_record, unpack

__all__ = ["ClientRound", "answer_query", "client_app", "training"]

STATE_DIRECTORY = "state-directory"
"""The key of a node's config that says where its clients' vectors are kept on disk."""


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
        assignment, manifest = read_task(message.content, own)
        client = client_number(context)
        result = train_client(
            agreed(assignment, context),
            own,
            assignment.task,
            client=client,
            data=data(context),
            train=train,
            store=settled(assignment, manifest, context),
            buffers=assignment.buffers,
        )
        return Message(reply_record(result), reply_to=message)

    return app


class ClientRound:
    """One round of an existing ClientApp: its optimizer, and the reply when training is done."""

    def __init__(self, local: LocalRound) -> None:
        self._local = local
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
    assignment, manifest = read_task(message.content, model)
    client = client_number(context)
    store = settled(assignment, manifest, context)
    local = LocalRound(
        agreed(assignment, context),
        model,
        assignment.task,
        client=client,
        kept=store.load(client),
        buffers=assignment.buffers,
    )
    mine = ClientRound(local)
    with seeded(assignment.task, client):
        yield mine
    reply = local.finish(examples=mine.examples, metrics=mine.metrics)
    if local.kept:
        store.stage(client, assignment.task.round, local.kept)
    mine.reply = Message(reply_record(reply), reply_to=message)


def answer_query(message: Message, context: Context) -> Message:
    """Tell the server which client this node is; an existing app registers it for ``query``."""
    header: dict[str, ConfigRecordValues] = {
        "client": client_number(context),
        "clients": int(context.node_config.get("num-partitions", 0)),
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


def settled(assignment: Assignment, manifest: Manifest, context: Context) -> Store:
    """The client's store, brought to what the server last accepted.

    What was staged becomes the client's only if the server names its round; what the server
    has never accepted, such as the leavings of an earlier run, is not used.
    """
    client, last = client_number(context), assignment.last
    store = _store(manifest, context)
    store.commit(last, [client])
    needed = bool(agreed(assignment, context).kept) or assignment.buffers == "local"
    require(
        not needed or last == -1 or store.round(client) == last,
        f"client {client} keeps vectors of round {store.round(client)} and the server accepted"
        f" round {last} last: they were lost or are old. Give the SuperNode a"
        f" {STATE_DIRECTORY} in its --node-config that survives a restart",
    )
    return _Fresh(store) if last == -1 else store


def _store(manifest: Manifest, context: Context) -> Store:
    directory = context.node_config.get(STATE_DIRECTORY)
    if directory is None:
        return ContextStore(context, manifest)
    return DiskStore(Path(str(directory)) / f"client-{client_number(context)}")


class _Fresh:
    """A store as it looks to a client that was never accepted."""

    def __init__(self, store: Store) -> None:
        self.stage, self.commit = store.stage, store.commit

    def load(self, client: int) -> Vectors:
        return Vectors()

    def round(self, client: int) -> int:
        return -1


class ContextStore:
    """Client vectors in Flower's ``Context.state``: they last as long as the node's process."""

    def __init__(self, context: Context, manifest: Manifest) -> None:
        self._state, self._manifest = context.state, manifest

    def load(self, client: int) -> Vectors:
        kept = self._state.get("fedlada.kept")
        return unpack(kept, self._manifest) if isinstance(kept, ArrayRecord) else Vectors()

    def round(self, client: int) -> int:
        return self._number("fedlada.kept.round")

    def stage(self, client: int, round: int, kept: Vectors) -> None:
        self._state["fedlada.staged"] = pack(kept)
        self._state["fedlada.staged.round"] = ConfigRecord({"round": round})

    def commit(self, round: int, clients: object) -> None:
        if self._number("fedlada.staged.round") == round >= 0:
            self._state["fedlada.kept"] = self._state["fedlada.staged"]
            self._state["fedlada.kept.round"] = self._state["fedlada.staged.round"]
        for name in ("fedlada.staged", "fedlada.staged.round"):
            if name in self._state:
                del self._state[name]

    def _number(self, name: str) -> int:
        record = self._state.get(name)
        return int(record["round"]) if isinstance(record, ConfigRecord) else -1  # type: ignore[arg-type]
