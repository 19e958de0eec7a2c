"""The client side on Flower: a ready ClientApp, and context managers for an existing one."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from flwr.app import ConfigRecord, ConfigRecordValues, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from torch import nn

from ..algorithms import Algorithm, algorithm as named_algorithm
from ..algorithms.registry import outside_names
from ..client.errors import named_errors
from ..client.evaluation import EvaluateLocally, EvaluationSession, evaluation_session
from ..client.round import ClientSession, D, Train, asked, client_session
from ..devices import chosen, seeded
from ..errors import require
from ..protocol.messages import LONGEST_NAME, Answer
from ..protocol.seeds import seed_of
from ..training.examples import examples_in
from . import masks
from .context_store import client_store
from .warm.keeping import kept
from .wire.header import HEADER
from .wire.records import (
    Assignment,
    answer_record,
    evaluation_record,
    read_question,
    read_task,
    reply_record,
)

__all__ = [
    "ClientEvaluation",
    "ClientRound",
    "answer_query",
    "built",
    "client_app",
    "evaluating",
    "training",
]


DEVICE = "device"
"""The key in a node's config, or a run's, for where models train."""
SITE = "site"
"""The key in a node's config for the name of its site, which the server's log shows."""


def client_app(
    model: Callable[[], nn.Module],
    data: Callable[[Context], D],
    train: Train[D],
    *,
    evaluate: EvaluateLocally[D] | None = None,
    held_out: Callable[[Context], D] | None = None,
) -> ClientApp:
    """Make a ClientApp that serves every algorithm.

    ``model()`` builds the same model as the server, and torch's generator is seeded for it.
    ``data(context)`` returns the data of this node's client (its number is
    ``context.node_config["partition-id"]``), and ``train(model, data, optimizer)`` is a training
    loop such as :class:`fedlada.LocalTraining`.

    The model trains where ``model()`` makes it, or on the ``device`` that the node's config names,
    else the run's: ``auto``, ``cpu``, ``cuda`` and so on.

    A warm node (:func:`warm_app`) calls ``data`` once per run, and the others for every message.

    ``evaluate(model, data)`` returns the metrics of the server's model on this client's data, if
    the server asks for them; ``held_out(context)`` returns the data for it, by default the
    training data.
    """
    app = ClientApp()
    app.query()(answer_query)
    data, held_out = kept(data), kept(held_out or data)

    @app.train()
    def reply(message: Message, context: Context) -> Message:
        network, examples = built(model, message, context), data(context)
        with training(message, context, network) as local:
            _check_own(local.client, context)
            more = asked(train, client=local.client, round=local.round)
            local.metrics = train(network, examples, local.optimizer(), **more)
            local.examples = examples_in(examples)
        return local.reply

    if evaluate is not None:

        @app.evaluate()
        def assess(message: Message, context: Context) -> Message:
            network, examples = built(model, message, context), held_out(context)
            with evaluating(message, context, network) as local:
                _check_own(local.client, context)
                local.metrics = evaluate(network, examples)
                local.examples = examples_in(examples)
            return local.reply

    return app


def built(model: Callable[[], nn.Module], message: Message, context: Context) -> nn.Module:
    """Build the model of a message with weights by the run's seed, as the server does.

    It is on the device that the node's config names, or the run's.  The server's parameters replace
    most of its own.  Those that are not sent, because they are personal or frozen, begin with the
    same values on every node.
    """
    header = message.content.get(HEADER)
    seed = header.get("seed") if isinstance(header, ConfigRecord) else None
    if not isinstance(seed, int):  # the message is wrong, and is refused where it is read
        return model()
    with seeded(seed_of(seed, "model")):
        network = model()
    name = context.node_config.get(DEVICE, context.run_config.get(DEVICE, ""))
    return network.to(chosen(str(name))) if name else network


class ClientRound:
    """One round of an existing ClientApp: its optimizer, and its reply after training."""

    def __init__(self, session: ClientSession) -> None:
        self._session = session
        self.client = session.client
        """The client to train: the node's partition id, unless nodes have several clients."""
        self.round = session.round
        """The number of the round, from 1, as in its record."""
        self.optimizer = session.optimizer
        self.lr = session.lr
        self.examples = 1
        """Number of examples trained on: the reply's weight if the server weights by examples."""
        self.metrics = session.metrics
        self.reply: Message
        """The message to return; it is available after the block has ended."""


@contextmanager
def training(message: Message, context: Context, model: nn.Module) -> Iterator[ClientRound]:
    """Run a client's round around the training in an ``@app.train()`` function.

    >>> with training(message, context, model) as local:
    ...     train(model, loader, local.optimizer())
    >>> return local.reply
    """
    client, assignment, manifest = read_task(message.content, model)
    check_place(client, context)
    task = assignment.task
    with named_errors(client, task.round, site_of(context)):
        masks.check_masked(context, hidden=task.sealed is not None)
        with client_session(
            agreed(assignment, context),
            model,
            task,
            client=client,
            store=client_store(manifest, context),
            buffers=assignment.buffers,
            personal=assignment.personal,
        ) as session:
            local = ClientRound(session)
            yield local
            session.examples, session.metrics = local.examples, local.metrics
        reply = session.reply
        if task.sealed is not None:
            reply = masks.masked(reply, task, context)
    local.reply = Message(reply_record(reply, task), reply_to=message)


class ClientEvaluation:
    """The evaluation of the server's model in an existing ClientApp."""

    def __init__(self, session: EvaluationSession) -> None:
        self.client = session.client
        """The client whose data to evaluate on: the node's partition id, unless nodes have several
        clients."""
        self.examples = session.examples
        """Number of examples evaluated on: the weight of the metrics in the server's mean."""
        self.metrics = session.metrics
        self.reply: Message
        """The message to return; it is available after the block has ended."""


@contextmanager
def evaluating(message: Message, context: Context, model: nn.Module) -> Iterator[ClientEvaluation]:
    """Set ``model`` to the server's around the evaluation in an ``@app.evaluate()`` function.

    >>> with evaluating(message, context, model) as local:
    ...     local.metrics, local.examples = {"accuracy": accuracy(model, loader)}, len(data)
    >>> return local.reply

    Inside the block the model is in eval mode and torch records no gradients.
    """
    client, assignment, manifest = read_task(message.content, model)
    check_place(client, context)
    masks.check_masked(context, hidden=False)
    with (
        named_errors(client, assignment.task.round, site_of(context)),
        evaluation_session(
            model,
            assignment.task,
            client=client,
            store=client_store(manifest, context),
            buffers=assignment.buffers,
            personal=assignment.personal,
        ) as session,
    ):
        local = ClientEvaluation(session)
        yield local
        session.examples, session.metrics = local.examples, local.metrics
    local.reply = Message(evaluation_record(session.assessment), reply_to=message)


def answer_query(message: Message, context: Context) -> Message:
    """Report this node's partition id and site, or answer the server about the masks of a round.

    An existing app registers it for ``query``.
    """
    if HEADER in message.content:
        question = read_question(message.content)
        check_place(question.client, context)
        told = masks.answer(question, context)
        answer = Answer(client=question.client, message=told)
        return Message(answer_record(answer), reply_to=message)
    header: dict[str, ConfigRecordValues] = {
        "client": client_number(context),
        "clients": node_count(context),
        "site": site_of(context),
    }
    return Message(RecordDict({HEADER: ConfigRecord(header)}), reply_to=message)


def site_of(context: Context) -> str:
    """Return the name of this node's site; empty if its config has none."""
    return str(context.node_config.get(SITE, ""))[:LONGEST_NAME]


def client_number(context: Context) -> int:
    """Return the number of the client on this node: its partition id."""
    require(
        "partition-id" in context.node_config,
        f"this node's config has {', '.join(context.node_config) or 'nothing'} and no"
        " partition-id; start the SuperNode with --node-config 'partition-id=0 num-partitions=3'",
    )
    return int(context.node_config["partition-id"])


def node_count(context: Context) -> int:
    """Return the number of nodes in this node's config, or 0 without it."""
    return int(context.node_config.get("num-partitions", 0))


def _check_own(client: int, context: Context) -> None:
    """Check that the task is for the client whose data the app returns: the node's partition id."""
    require(
        client == client_number(context),
        f"the task is for client {client}, but data(context) returns the data of client"
        f" {client_number(context)}; a node with several clients must use training(...)",
    )


def check_place(client: int, context: Context) -> None:
    """Check that the client is on this node: of n nodes, node i has clients i, i + n, i + 2n..."""
    node, nodes = client_number(context), node_count(context)
    require(
        node == (client % nodes if nodes else client),
        f"the task is for client {client}, which is not on node {node} of {nodes}; give every"
        " SuperNode a different partition-id and the same num-partitions",
    )


def agreed(assignment: Assignment, context: Context) -> Algorithm:
    """Return the algorithm that the server names.

    Code of another package is imported only if the run config on this node names it, too.
    """
    encoded = json.loads(assignment.algorithm)
    trusted = re.findall(r"[\w.]+:[\w.]+", str(context.run_config.get("algorithm", "")))
    for path in outside_names(encoded):
        require(
            path in trusted,
            f"the server names code of another package, {path!r}, which this run's config does not"
            " name; set algorithm in the app's config",
        )
    return named_algorithm(encoded)
