"""What travels, as Flower records: each vector one packed array, beside a manifest.

Flower makes two objects of every array and one request of every object, so a model sent tensor
by tensor costs several times the requests.  A packed vector is the bytes of its tensors, end to
end, as unsigned bytes: any dtype travels, also those numpy does not know.  The manifest gives
names, dtypes and shapes; both sides derive it from their own model, and it must be the same.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    ConfigRecordValues,
    MetricRecord,
    MetricRecordValues,
    RecordDict,
)
from torch import Tensor, nn

from ..algorithms import Vector, Vectors, require
from ..parameters import BufferPolicy, federated_buffers, federated_parameters
from ..protocol import Reply, Task

__all__ = ["Assignment", "Manifest", "read_reply", "read_task", "reply_record", "task_record"]

VECTORS, HEADER, METRICS = "fedlada.vectors", "fedlada", "fedlada.metrics"
DTYPES = {
    str(dtype): dtype for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64)
}

Layout = list[tuple[str, str, list[int]]]


@dataclass(frozen=True)
class Manifest:
    """Names, dtypes and shapes of the tensors of a vector, for parameters and for buffers."""

    parameters: Layout
    buffers: Layout

    @classmethod
    def of(cls, model: nn.Module, buffers: BufferPolicy) -> Manifest:
        """The manifest of a model."""
        parameters = federated_parameters(model)
        found = federated_buffers(model, buffers)
        by_identity = {id(b): name for name, b in model.named_buffers()}
        return cls(
            [_entry(name, p) for name, p in parameters.items()],
            [_entry(by_identity[id(b)], b) for b in found],
        )

    def text(self) -> str:
        """The manifest as it travels."""
        return json.dumps([self.parameters, self.buffers])

    def check(self, other: str) -> None:
        """Raise, saying where, unless another side's manifest is this one."""
        if other == self.text():
            return
        for kind, ours, theirs in zip(
            ("parameters", "buffers"),
            (self.parameters, self.buffers),
            json.loads(other),
            strict=True,
        ):
            require(
                len(ours) == len(theirs),
                f"the server's model has {len(theirs)} {kind}, this client's has {len(ours)}; both"
                " must build the same model",
            )
            for mine, yours in zip(ours, theirs, strict=True):
                require(
                    list(mine) == list(yours),
                    f"the server's model has {_say(yours)} where this client's has {_say(mine)};"
                    " both must build the same model",
                )

    def layout(self, vector: str) -> Layout:
        """The layout of a vector by its name."""
        return self.buffers if vector == "buffers" else self.parameters

    def unpack(self, name: str, array: Array) -> Vector:
        """A packed vector's tensors, sharing the array's memory."""
        layout = self.layout(name)
        sizes = [_size(entry) for entry in layout]
        require(
            array.dtype == "uint8" and tuple(array.shape) == (sum(sizes),),
            f"vector {name!r} came as {array.dtype} of shape {tuple(array.shape)}; it must be"
            f" {sum(sizes):,} packed bytes",
        )
        data = torch.from_numpy(array.numpy())
        return Vector(
            _tensor(piece, entry)
            for piece, entry in zip(torch.split(data, sizes), layout, strict=True)
        )


@dataclass(frozen=True, kw_only=True)
class Assignment:
    """A task as one client receives it."""

    task: Task
    algorithm: str
    """The algorithm's name and settings, as JSON."""
    buffers: BufferPolicy
    last: int
    """The round of this client's last accepted reply; -1 if there was none."""


def pack(vectors: Vectors) -> ArrayRecord:
    """Each vector as one array of bytes."""
    return ArrayRecord({name: Array(_bytes(vector)) for name, vector in vectors.items()})


def unpack(record: ArrayRecord, manifest: Manifest) -> Vectors:
    """The vectors of a record."""
    return Vectors((name, manifest.unpack(name, array)) for name, array in record.items())


def task_record(assignment: Assignment, vectors: ArrayRecord, manifest: Manifest) -> RecordDict:
    """What the server sends; ``vectors`` is packed once for the whole cohort."""
    task = assignment.task
    header: dict[str, ConfigRecordValues] = {
        "round": task.round,
        "seed": task.seed,
        "lr": task.lr,
        "last": assignment.last,
        "algorithm": assignment.algorithm,
        "buffers": assignment.buffers,
        "manifest": manifest.text(),
    }
    return RecordDict({VECTORS: vectors, HEADER: ConfigRecord(header)})


def read_task(content: RecordDict, model: nn.Module) -> tuple[Assignment, Manifest]:
    """What a client received, checked against its own model."""
    header: Any = content[HEADER]
    manifest = Manifest.of(model, header["buffers"])
    manifest.check(header["manifest"])
    vectors = content[VECTORS]
    assert isinstance(vectors, ArrayRecord)
    task = Task(
        round=header["round"],
        seed=header["seed"],
        lr=header["lr"],
        vectors=unpack(vectors, manifest),
    )
    assignment = Assignment(
        task=task,
        algorithm=header["algorithm"],
        buffers=header["buffers"],
        last=header["last"],
    )
    return assignment, manifest


def reply_record(reply: Reply) -> RecordDict:
    """What a client sends back."""
    header: dict[str, ConfigRecordValues] = {
        "client": reply.client,
        "round": reply.round,
        "examples": reply.examples,
        "steps": reply.steps,
        "lr_steps": reply.lr_steps,
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
    """What the server received."""
    header: Any = content[HEADER]
    vectors, metrics = content[VECTORS], content[METRICS]
    if not (isinstance(vectors, ArrayRecord) and isinstance(metrics, MetricRecord)):
        raise TypeError("a reply's vectors and metrics must be an ArrayRecord and a MetricRecord")
    return Reply(
        client=header["client"],
        round=header["round"],
        vectors=unpack(vectors, manifest),
        examples=header["examples"],
        steps=header["steps"],
        lr_steps=header["lr_steps"],
        metrics={name: float(value) for name, value in metrics.items()},  # type: ignore[arg-type]
    )


def _entry(name: str, t: Tensor) -> tuple[str, str, list[int]]:
    return name, str(t.dtype), list(t.shape)


def _say(entry: tuple[str, str, list[int]]) -> str:
    name, dtype, shape = entry
    return f"{name} ({dtype.removeprefix('torch.')} {shape})"


def _size(entry: tuple[str, str, list[int]]) -> int:
    _, dtype, shape = entry
    return torch.Size(shape).numel() * DTYPES[dtype].itemsize


def _bytes(vector: Vector) -> np.ndarray[Any, np.dtype[np.uint8]]:
    flat = [t.detach().cpu().contiguous().reshape(-1).view(torch.uint8) for t in vector]
    packed: np.ndarray[Any, np.dtype[np.uint8]] = torch.cat(
        flat or [torch.empty(0, dtype=torch.uint8)]
    ).numpy()
    return packed


def _tensor(piece: Tensor, entry: tuple[str, str, list[int]]) -> Tensor:
    _, dtype, shape = entry
    if piece.storage_offset() % DTYPES[dtype].itemsize:
        piece = piece.clone()
    return piece.view(DTYPES[dtype]).view(shape)
