"""Messages between the root of an aggregation tree and its leaves, as Flower records.

The root sends the task, the leaf's share of the cohort and what the guard needs.  The leaf answers
with the tally of its share: plain values as JSON, and one array with all tensors.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from flwr.app import ArrayRecord, ConfigRecord, ConfigRecordValues, RecordDict
from torch import Tensor, nn

from ...algorithms import Vector
from ...client.store import NEVER
from ...errors import FedladaError, require
from ...protocol.codecs import Codecs, MalformedReply
from ...protocol.manifest import Entry, Layout, Manifest
from ...protocol.messages import Task
from ...protocol.wire import receive, send
from ...server.aggregate.robust import aggregator_table
from ...server.collect.form import written
from ...server.collect.order import Order
from ...server.collect.tally import Tally
from ...server.plan import Plan
from ..wire.header import HEADER, Header
from ..wire.packing import opened, packed
from ..wire.records import (
    TASK,
    VECTORS,
    Assignment,
    pack,
    read_assignment,
    task_header,
    unpack,
)

__all__ = ["Received", "Written", "order_record", "read_order", "read_tally", "tally_record"]

SUMS, TENSORS = "fedlada.sums", "tensors"
ORDER = (TASK - {"client", "sealed"}) | {"clients", "cohort", "order"}
TALLY = {"leaf", "round", "nonce", "names", "tally"}
"""The keys of each kind of header."""

PER_CLIENT, AT_LEAST = 2**15, 2**18
"""Largest number of characters of a tally's JSON: for each client, and for the rest."""

SUM = re.compile(r"total/(?:high|low):(\w+)")
REPLY = re.compile(r"(?:total/\d{1,9}:|held/\d{1,9}/)(\w+)")
"""The names of a tally's tensors, with the name of their vector."""

EXACT = Codecs()


def order_record(
    order: Order,
    assignment: Assignment,
    plan: Plan,
    vectors: ArrayRecord,
    manifest: Manifest,
    seconds: float | None,
) -> RecordDict:
    """Return the root's record for a leaf; ``vectors`` is packed once for all leaves.

    ``seconds`` is how long the leaf may take; None for as long as it needs.
    """
    last = order.task.last_accepted
    table = order.plain() | {
        "weighting": plan.weighting,
        "guard": "off" if plan.guard is None else dataclasses.asdict(plan.guard),
        "aggregator": aggregator_table(plan.aggregator),
        "seconds": seconds,
    }
    header: dict[str, ConfigRecordValues] = {
        "clients": list(order.clients),
        # In a private run nobody learns who else takes part.
        "cohort": list(order.cohort if order.task.clips is None else order.clients),
        "last_accepted": [last.get(client, NEVER) for client in order.clients],
        "order": json.dumps(table),
    }
    record = ConfigRecord(task_header(assignment, manifest) | header)
    sums = pack(send(order.state.vectors, EXACT, "down", seed=0))
    return RecordDict({VECTORS: vectors, SUMS: sums, HEADER: record})


class Received(NamedTuple):
    """The order that a leaf receives."""

    order: Order
    assignment: Assignment
    plan: Plan
    """It has the default algorithm: the leaf decides which code it trusts."""
    manifest: Manifest
    seconds: float | None
    """Seconds that the leaf may take; None for no limit."""


def read_order(content: RecordDict, model: nn.Module) -> Received:
    """Return the order of a leaf, checked against its model."""
    require(
        isinstance(content, RecordDict) and SUMS in content,
        "this node is a leaf, but the server's task is for a single client; set clients in the"
        " run's config to the number of clients of all leaves",
    )
    try:
        return _read_order(content, model)
    except (MalformedReply, TypeError, KeyError, ValueError) as wrong:
        raise FedladaError(
            f"the server's task cannot be read ({wrong}); both must run the same fedlada"
        ) from wrong


def _read_order(content: RecordDict, model: nn.Module) -> Received:
    header = Header(content, {VECTORS, SUMS, HEADER}, ORDER)
    clients, last = header.integers("clients"), header.integers("last_accepted")
    accepted = dict(zip(clients, last, strict=True))
    assignment, manifest = read_assignment(header, content, model, accepted)
    table = json.loads(header.text("order", most=2**30))
    plan = Plan(
        weighting=table["weighting"],
        guard=table["guard"],
        aggregator=table["aggregator"],
        buffers=assignment.buffers,
        personal=assignment.personal,
        codec=assignment.task.codecs,
        cohort="all",
    )
    packed_sums = content[SUMS]
    assert isinstance(packed_sums, ArrayRecord)
    sums, _ = unpack(packed_sums, manifest, EXACT, "down")
    cohort = header.integers("cohort")
    order = Order.read(table, assignment.task, sums, cohort=cohort, clients=clients)
    return Received(order, assignment, plan, manifest, table["seconds"])


def tally_record(tally: Tally, task: Task, leaf: int) -> RecordDict:
    """Return the tally of a leaf's share as a record."""
    header, tensors = written(tally)
    payloads = [EXACT.of("up", name).encode(Vector(ts), seed=0) for name, ts in tensors.items()]
    record: dict[str, ConfigRecordValues] = {
        "leaf": leaf,
        "round": task.round,
        "nonce": task.nonce,
        "names": " ".join(tensors),
        "tally": json.dumps(header),
    }
    flat = torch.cat(payloads) if payloads else torch.empty(0, dtype=torch.uint8)
    arrays = ArrayRecord({TENSORS: packed(flat)})
    return RecordDict({VECTORS: arrays, HEADER: ConfigRecord(record)})


@dataclass(frozen=True)
class Written:
    """A tally as it was sent: plain values and tensors."""

    leaf: int
    round: int
    nonce: str
    header: Any
    tensors: Mapping[str, Sequence[Tensor]]


def read_tally(content: RecordDict, manifest: Manifest, clients: int) -> Written:
    """Return a leaf's answer for this number of clients, not yet as a tally.

    Raises only :class:`MalformedReply`, and allocates no more than what was received.
    """
    most = AT_LEAST + PER_CLIENT * clients
    header = Header(content, {VECTORS, HEADER}, TALLY)
    arrays = content[VECTORS]
    if not isinstance(arrays, ArrayRecord) or list(arrays) != [TENSORS]:
        raise MalformedReply("wrong records")
    # A copy, since sums of other leaves may be added in place.
    payload, names = opened(arrays[TENSORS], copy=True), header.text("names", most=most).split()
    layouts = [_layout(name, manifest) for name in names]
    sizes = [sum(entry.nbytes for entry in layout) for layout in layouts]
    if len(set(names)) < len(names) or sum(sizes) != payload.numel():
        raise MalformedReply("wrong length of a vector")
    pieces = zip(names, torch.split(payload, sizes) if sizes else (), layouts, strict=True)
    return Written(
        leaf=header.integer("leaf"),
        round=header.integer("round"),
        nonce=header.text("nonce"),
        header=_json(header.text("tally", most=most)),
        tensors={n: receive(n, piece, layout, EXACT, "up").tensors for n, piece, layout in pieces},
    )


def _layout(name: str, manifest: Manifest) -> Layout:
    """Return the layout of a tally's tensors by their name."""
    if match := SUM.fullmatch(name):
        elements = sum(entry.numel for entry in manifest.layout(match[1]))
        return [Entry("", "torch.float64", [elements])]
    if match := REPLY.fullmatch(name):
        return manifest.layout(match[1])
    raise MalformedReply("wrong vectors of a tally")


def _json(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as wrong:
        raise MalformedReply("wrong values of a tally") from wrong
