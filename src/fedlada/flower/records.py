"""What travels, as Flower records: packed vectors beside a header of plain values.

Flower makes two objects of every array and one request of every object, so a model sent tensor
by tensor costs several times the requests: each vector is one packed array.

What comes may be anything that Flower can carry.  It is read strictly, with exactly the records
and keys that are written here, and whatever is not so is a :class:`MalformedReply`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from flwr.app import (
    ArrayRecord,
    ConfigRecord,
    ConfigRecordValues,
    MetricRecord,
    MetricRecordValues,
    RecordDict,
)
from torch import nn

from ..algorithms import Vectors
from ..parameters import BufferPolicy
from ..protocol import Reply, Task
from ..store import NEVER
from .packing import MalformedReply, Manifest, packed

__all__ = [
    "Assignment",
    "MalformedReply",
    "Manifest",
    "read_identity",
    "read_reply",
    "read_task",
    "reply_record",
    "task_record",
]

VECTORS, HEADER, METRICS = "fedlada.vectors", "fedlada", "fedlada.metrics"

MOST_VECTORS, MOST_METRICS, LONGEST_NAME = 32, 100, 100
MOST_CLIENTS = 10_000_000
WIRE = range(-(2**63), 2**64)
"""The integers that Flower can carry."""

TASK = {
    *("client", "round", "seed", "lr", "nonce", "run", "last", "epoch"),
    *("algorithm", "buffers", "manifest"),
}
REPLY = {"client", "round", "examples", "steps", "lr_steps", "nonce", "seconds"}
IDENTITY = {"client", "clients"}
"""The keys of each kind of header."""


@dataclass(frozen=True, kw_only=True)
class Assignment:
    """A task as one client receives it."""

    task: Task
    algorithm: str
    """The algorithm's name and settings, as JSON."""
    buffers: BufferPolicy


def pack(vectors: Vectors) -> ArrayRecord:
    """Each vector as one array of bytes."""
    return ArrayRecord({name: packed(vector) for name, vector in vectors.items()})


def unpack(record: ArrayRecord, manifest: Manifest, *, copy: bool = True) -> Vectors:
    """The vectors of a record; see :meth:`Manifest.unpack`."""
    if len(record) > MOST_VECTORS or any(len(name) > LONGEST_NAME for name in record):
        raise MalformedReply("too many vectors or too long a name")
    return Vectors(
        (name, manifest.unpack(name, array, copy=copy)) for name, array in record.items()
    )


def task_record(
    assignment: Assignment, vectors: ArrayRecord, manifest: Manifest, *, client: int
) -> RecordDict:
    """What the server sends to a client; ``vectors`` is packed once for the whole cohort."""
    task = assignment.task
    header: dict[str, ConfigRecordValues] = {
        "client": client,
        "round": task.round,
        "seed": task.seed,
        "lr": task.lr,
        "nonce": task.nonce,
        "run": task.run,
        "last": task.last.get(client, NEVER),
        "epoch": task.epoch,
        "algorithm": assignment.algorithm,
        "buffers": assignment.buffers,
        "manifest": manifest.text(),
    }
    return RecordDict({VECTORS: vectors, HEADER: ConfigRecord(header)})


def read_task(content: RecordDict, model: nn.Module) -> tuple[int, Assignment, Manifest]:
    """For which client a task is, and the task, checked against the client's own model."""
    try:
        return _read_task(content, model)
    except MalformedReply as wrong:
        raise ValueError(
            f"the server's task is not one ({wrong}); both must run the same fedlada"
        ) from wrong


def _read_task(content: RecordDict, model: nn.Module) -> tuple[int, Assignment, Manifest]:
    header = _Header(content, {VECTORS, HEADER}, TASK)
    buffers = cast(BufferPolicy, header.text("buffers"))  # the manifest checks that it is one
    manifest = Manifest.of(model, buffers)
    manifest.check(header.text("manifest", most=2**30))
    vectors, client = content[VECTORS], header.integer("client")
    if not isinstance(vectors, ArrayRecord):
        raise MalformedReply("wrong records")
    task = Task(
        round=header.integer("round"),
        seed=header.integer("seed"),
        lr=header.number("lr"),
        vectors=unpack(vectors, manifest),
        nonce=header.text("nonce"),
        run=header.text("run"),
        last={client: header.integer("last")},
        epoch=header.integer("epoch"),
    )
    algorithm = header.text("algorithm", most=2**20)
    return client, Assignment(task=task, algorithm=algorithm, buffers=buffers), manifest


def reply_record(reply: Reply) -> RecordDict:
    """What a client sends back."""
    header: dict[str, ConfigRecordValues] = {
        "client": reply.client,
        "round": reply.round,
        "examples": reply.examples,
        "steps": reply.steps,
        "lr_steps": reply.lr_steps,
        "nonce": reply.nonce,
        "seconds": reply.seconds,
    }
    metrics: dict[str, MetricRecordValues] = {k: float(v) for k, v in reply.metrics.items()}
    return RecordDict(
        {
            VECTORS: pack(reply.vectors),
            HEADER: ConfigRecord(header),
            METRICS: MetricRecord(metrics),
        }
    )


def read_reply(content: RecordDict, manifest: Manifest) -> Reply:
    """What the server received; its vectors share the content's memory, and are only to be read.

    Raises nothing but :class:`MalformedReply`, and allocates no more than the manifest's bytes.
    """
    header = _Header(content, {VECTORS, HEADER, METRICS}, REPLY)
    vectors, metrics = content[VECTORS], content[METRICS]
    if not (isinstance(vectors, ArrayRecord) and isinstance(metrics, MetricRecord)):
        raise MalformedReply("wrong records")
    return Reply(
        client=header.integer("client"),
        round=header.integer("round"),
        examples=header.integer("examples"),
        steps=header.integer("steps"),
        lr_steps=header.number("lr_steps"),
        nonce=header.text("nonce"),
        seconds=header.number("seconds"),
        metrics=_metrics(metrics),
        vectors=unpack(vectors, manifest, copy=False),
    )


def read_identity(content: RecordDict) -> tuple[int, int]:
    """Which client a node says it is, of how many; raises nothing but :class:`MalformedReply`."""
    header = _Header(content, {HEADER}, IDENTITY)
    client, clients = header.integer("client"), header.integer("clients")
    if not 0 <= client < clients <= MOST_CLIENTS:
        raise MalformedReply("impossible client number")
    return client, clients


class _Header:
    """The header of a content that has these records and keys and no others."""

    def __init__(self, content: RecordDict, records: set[str], keys: set[str]) -> None:
        if not isinstance(content, RecordDict) or content.keys() != records:
            raise MalformedReply("wrong records")
        header = content[HEADER]
        if not isinstance(header, ConfigRecord):
            raise MalformedReply("wrong records")
        if header.keys() != keys:
            raise MalformedReply("wrong header keys")
        self._values = header

    def integer(self, key: str) -> int:
        value = self._values[key]
        if type(value) is not int or value not in WIRE:
            raise MalformedReply("wrong header value")
        return value

    def number(self, key: str) -> float:
        return _number(self._values[key], "wrong header value")

    def text(self, key: str, *, most: int = LONGEST_NAME) -> str:
        value = self._values[key]
        if not isinstance(value, str) or len(value) > most:
            raise MalformedReply("wrong header value")
        return value


def _metrics(record: MetricRecord) -> dict[str, float]:
    if len(record) > MOST_METRICS:
        raise MalformedReply("too many metrics")
    # Names are shown to people: nothing in them may move a cursor or start a line.
    if any(len(name) > LONGEST_NAME or not name.isprintable() for name in record):
        raise MalformedReply("wrong name of a metric")
    return {name: _number(value, "wrong value of a metric") for name, value in record.items()}


def _number(value: object, otherwise: str) -> float:
    if not isinstance(value, float) and (type(value) is not int or value not in WIRE):
        raise MalformedReply(otherwise)
    return float(value)
