"""Messages as Flower records: packed vectors and a header of plain values.

Flower sends every array as two objects, each with its own request.  A model sent tensor by tensor
would cost several times as many requests, so each vector is one packed array.

A received message may be anything that Flower can carry.  It must have exactly the records and
keys that are written here; anything else is a :class:`MalformedReply`.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
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

from ...algorithms import Vectors
from ...client.store import NEVER
from ...errors import FedladaError
from ...protocol.codecs import Codecs, MalformedReply, Way
from ...protocol.federated import BufferPolicy
from ...protocol.manifest import Manifest
from ...protocol.messages import (
    LONGEST_NAME,
    MOST_METRICS,
    Answer,
    Assessment,
    Clips,
    Reply,
    Task,
    reply_parcel,
    well_named,
)
from ...protocol.wire import Parcel, receive, send
from .header import HEADER, Header, number
from .packing import opened, packed

__all__ = [
    "Assignment",
    "Question",
    "answer_record",
    "arrived",
    "evaluation_record",
    "question_record",
    "read_answer",
    "read_assignment",
    "read_evaluation",
    "read_identity",
    "read_question",
    "read_reply",
    "read_task",
    "reply_record",
    "task_header",
    "task_record",
]

VECTORS, METRICS = "fedlada.vectors", "fedlada.metrics"

MOST_VECTORS = 32
MOST_CLIENTS = 10_000_000

TASK = {
    *("client", "round", "seed", "lr", "nonce", "run", "last_accepted", "resumable_from"),
    *("algorithm", "buffers", "personal", "codec", "manifest", "clips", "sealed"),
}
REPLY = {"client", "round", "examples", "steps", "lr_sum", "nonce", "seconds"}
EVALUATION = {"client", "round", "examples", "nonce"}
IDENTITY = {"client", "clients", "site"}
QUESTION = {"client", "context", "step", "message"}
ANSWER = {"client", "message"}
"""The keys of each kind of header."""


@dataclass(frozen=True, kw_only=True)
class Assignment:
    """A task as one client receives it."""

    task: Task
    algorithm: str
    """The algorithm's spec, as JSON."""
    buffers: BufferPolicy
    personal: tuple[str, ...] = ()
    """The patterns of the names of tensors that the client keeps to itself."""


def pack(parcel: Parcel) -> ArrayRecord:
    """Return each vector as one array of bytes."""
    return ArrayRecord({name: packed(parcel.payload(name)) for name in parcel.given})


def unpack(
    record: ArrayRecord, manifest: Manifest, codecs: Codecs, way: Way, *, copy: bool = True
) -> tuple[Vectors, int]:
    """Return the vectors of a record and their number of bytes."""
    if len(record) > MOST_VECTORS or any(len(name) > LONGEST_NAME for name in record):
        raise MalformedReply("too many vectors or too long a name")
    payloads = {name: opened(array, copy=copy) for name, array in record.items()}
    vectors = Vectors(
        (name, receive(name, payload, manifest.layout(name), codecs, way))
        for name, payload in payloads.items()
    )
    return vectors, sum(payload.numel() for payload in payloads.values())


def task_record(
    assignment: Assignment, vectors: ArrayRecord, manifest: Manifest, *, client: int
) -> RecordDict:
    """Return the server's record for a client; ``vectors`` is packed once for the whole cohort."""
    header = task_header(assignment, manifest)
    task = assignment.task
    header |= {"client": client, "last_accepted": task.last_accepted.get(client, NEVER)}
    header["sealed"] = b"" if task.sealed is None else task.sealed[client]
    return RecordDict({VECTORS: vectors, HEADER: ConfigRecord(header)})


def task_header(assignment: Assignment, manifest: Manifest) -> dict[str, ConfigRecordValues]:
    """Return the header values that all receivers of a task share."""
    task = assignment.task
    return {
        "round": task.round,
        "seed": task.seed,
        "lr": task.lr,
        "nonce": task.nonce,
        "run": task.run,
        "resumable_from": task.resumable_from,
        "algorithm": assignment.algorithm,
        "buffers": assignment.buffers,
        "personal": list(assignment.personal),
        "codec": str(task.codecs),
        "manifest": manifest.text(),
        "clips": "" if task.clips is None else json.dumps(dataclasses.asdict(task.clips)),
    }


def read_task(content: RecordDict, model: nn.Module) -> tuple[int, Assignment, Manifest]:
    """Return a task's client, the task and the manifest, checked against the client's model."""
    try:
        return _read_task(content, model)
    except MalformedReply as wrong:
        raise FedladaError(
            f"the server's task cannot be read ({wrong}); both must run the same fedlada"
        ) from wrong


def _read_task(content: RecordDict, model: nn.Module) -> tuple[int, Assignment, Manifest]:
    header = Header(content, {VECTORS, HEADER}, TASK)
    client = header.integer("client")
    last, sealed = {client: header.integer("last_accepted")}, header.bytes("sealed")
    given = {client: sealed} if sealed else None
    return client, *read_assignment(header, content, model, last, sealed=given)


def read_assignment(
    header: Header,
    content: RecordDict,
    model: nn.Module,
    last_accepted: Mapping[int, int],
    *,
    sealed: Mapping[int, bytes] | None = None,
) -> tuple[Assignment, Manifest]:
    """Return the part of a task that all receivers share, and the manifest."""
    buffers = cast(BufferPolicy, header.text("buffers"))  # Manifest.of checks the value
    personal = tuple(header.texts("personal"))
    manifest = Manifest.of(model, buffers, personal)
    manifest.check(header.text("manifest", most=2**30))
    packed_vectors = content[VECTORS]
    if not isinstance(packed_vectors, ArrayRecord):
        raise MalformedReply("wrong records")
    codecs = Codecs.read(header.text("codec", most=2**12))
    vectors, _ = unpack(packed_vectors, manifest, codecs, "down")
    task = Task(
        round=header.integer("round"),
        seed=header.integer("seed"),
        lr=header.number("lr"),
        vectors=vectors,
        codecs=codecs,
        nonce=header.text("nonce"),
        run=header.text("run"),
        last_accepted=last_accepted,
        resumable_from=header.integer("resumable_from"),
        clips=_clips(header.text("clips", most=2**14)),
        sealed=sealed,
    )
    algorithm = header.text("algorithm", most=2**20)
    assignment = Assignment(task=task, algorithm=algorithm, buffers=buffers, personal=personal)
    return assignment, manifest


def _clips(text: str) -> Clips | None:
    """Return the clips of a private run, which the server has written as JSON."""
    if not text:
        return None
    try:
        values = json.loads(text)
        lengths = {str(name): float(value) for name, value in values["lengths"].items()}
        return Clips(steps=int(values["steps"]), lengths=lengths)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as wrong:
        raise MalformedReply("wrong clips") from wrong


def reply_record(reply: Reply, task: Task | None = None) -> RecordDict:
    """Return a client's reply as a record, encoded with the codecs of its task."""
    parcel = reply_parcel(reply, task) if task else send(reply.vectors, Codecs(), "up", seed=0)
    header: dict[str, ConfigRecordValues] = {
        "client": reply.client,
        "round": reply.round,
        "examples": reply.examples,
        "steps": reply.steps,
        "lr_sum": reply.lr_sum,
        "nonce": reply.nonce,
        "seconds": reply.seconds,
    }
    metrics: dict[str, MetricRecordValues] = {k: float(v) for k, v in reply.metrics.items()}
    return RecordDict(
        {
            VECTORS: pack(parcel),
            HEADER: ConfigRecord(header),
            METRICS: MetricRecord(metrics),
        }
    )


def read_reply(content: RecordDict, manifest: Manifest, codecs: Codecs | None = None) -> Reply:
    """Return a received reply; its vectors share memory with ``content`` and are read-only.

    Raises only :class:`MalformedReply`, and allocates no more than the manifest's bytes.
    """
    header = Header(content, {VECTORS, HEADER, METRICS}, REPLY)
    arrays, metrics = content[VECTORS], content[METRICS]
    if not (isinstance(arrays, ArrayRecord) and isinstance(metrics, MetricRecord)):
        raise MalformedReply("wrong records")
    vectors, received = unpack(arrays, manifest, codecs or Codecs(), "up", copy=False)
    return Reply(
        client=header.integer("client"),
        round=header.integer("round"),
        examples=header.integer("examples"),
        steps=header.integer("steps"),
        lr_sum=header.number("lr_sum"),
        nonce=header.text("nonce"),
        seconds=header.number("seconds"),
        metrics=_metrics(metrics),
        vectors=vectors,
        received=received,
    )


def evaluation_record(answer: Assessment) -> RecordDict:
    """Return a client's evaluation as a record."""
    header: dict[str, ConfigRecordValues] = {
        "client": answer.client,
        "round": answer.round,
        "examples": answer.examples,
        "nonce": answer.nonce,
    }
    metrics: dict[str, MetricRecordValues] = {k: float(v) for k, v in answer.metrics.items()}
    return RecordDict({HEADER: ConfigRecord(header), METRICS: MetricRecord(metrics)})


def read_evaluation(content: RecordDict) -> Assessment:
    """Return a client's evaluation; raise only :class:`MalformedReply`."""
    header = Header(content, {HEADER, METRICS}, EVALUATION)
    metrics = content[METRICS]
    if not isinstance(metrics, MetricRecord):
        raise MalformedReply("wrong records")
    return Assessment(
        client=header.integer("client"),
        round=header.integer("round"),
        examples=header.integer("examples"),
        nonce=header.text("nonce"),
        metrics=_metrics(metrics),
    )


@dataclass(frozen=True, kw_only=True)
class Question:
    """What the server asks a client about the masks of a round."""

    client: int
    context: str
    """The name of the round."""
    step: str
    message: bytes


def question_record(question: Question) -> RecordDict:
    """Return a question about masks as a record."""
    return RecordDict({HEADER: ConfigRecord(dict(vars(question)))})


def read_question(content: RecordDict) -> Question:
    """Return the server's question about masks."""
    try:
        header = Header(content, {HEADER}, QUESTION)
        return Question(
            client=header.integer("client"),
            context=header.text("context"),
            step=header.text("step"),
            message=header.bytes("message"),
        )
    except MalformedReply as wrong:
        raise FedladaError(
            f"the server's question cannot be read ({wrong}); both must run the same fedlada"
        ) from wrong


def answer_record(answer: Answer) -> RecordDict:
    """Return a client's answer about masks as a record."""
    return RecordDict({HEADER: ConfigRecord(dict(vars(answer)))})


def read_answer(content: RecordDict) -> Answer:
    """Return a client's answer about masks; raise only :class:`MalformedReply`."""
    header = Header(content, {HEADER}, ANSWER)
    return Answer(client=header.integer("client"), message=header.bytes("message"))


def arrived(content: RecordDict) -> int:
    """Return the number of bytes of all arrays in a received content, valid or not."""
    arrays = [a for record in content.array_records.values() for a in record.values()]
    return sum(len(array.data) for array in arrays if isinstance(array.data, bytes))


def read_identity(content: RecordDict) -> tuple[int, int, str]:
    """Return a node's claimed client, number of clients and site.

    Raises only :class:`MalformedReply`.
    """
    header = Header(content, {HEADER}, IDENTITY)
    client, clients = header.integer("client"), header.integer("clients")
    if not 0 <= client < clients <= MOST_CLIENTS:
        raise MalformedReply("impossible client number")
    site = header.text("site")
    if not well_named(site):
        raise MalformedReply("wrong name of a site")
    return client, clients, site


def _metrics(record: MetricRecord) -> dict[str, float]:
    if len(record) > MOST_METRICS:
        raise MalformedReply("too many metrics")
    if not all(map(well_named, record)):
        raise MalformedReply("wrong name of a metric")
    return {name: number(value, "wrong value of a metric") for name, value in record.items()}
