"""Bytes read as an attempt to get something past the server: what a client might send.

The same bytes always make the same case, here and without atheris, so that the corpus replays
anywhere.  A case starts from an honest reply and is spoiled step by step, or is made of raw
bytes that go through Flower's own deserialisation first.
"""

from __future__ import annotations

import json
import math
import pickle
import struct
import tracemalloc
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
import zstandard
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from torch import nn

from fedlada.algorithms import Algorithm, Vector, Vectors, algorithm
from fedlada.flower.wire.records import (
    HEADER,
    METRICS,
    VECTORS,
    MalformedReply,
    Manifest,
    read_identity,
    read_reply,
    reply_record,
)
from fedlada.protocol.codecs import Codecs
from fedlada.protocol.messages import Rejection, Reply, Task, reply_parcel
from fedlada.server.guard.admission import Accounts, Admission, Admitted
from fedlada.server.guard.limits import Guard

CORPUS = Path(__file__).with_name("corpus.txt")
HONEST = {"client": 3, "round": 7, "examples": 20, "steps": 5, "lr_sum": 0.5, "seconds": 1.0}
NONCE = "0123456789abcdef"
ROOM = 64 * 1024
"""What reading may allocate beyond the bytes of the model, for names, numbers and the like."""


class Model(nn.Module):
    """Three types, one of them not aligned when packed, and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(2, 3))
        self.h = nn.Parameter(torch.ones(3, dtype=torch.bfloat16))
        self.d = nn.Parameter(torch.ones(2, dtype=torch.float64))
        self.register_buffer("b", torch.zeros(2))


class Unpickled:
    """An object that gives itself away if anything unpickles it."""

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str]]:
        return exec, ("raise SystemError('something was unpickled')",)


ALGORITHM = algorithm("fedlada")
MANIFEST = Manifest.of(Model(), "average")
X = Vector(p.detach() for p in Model().parameters())
STATE = ALGORITHM.start(X)
STATE.buffers = Vector([torch.zeros(2)])
TASK = Task(
    round=HONEST["round"],
    seed=0,
    lr=0.1,
    vectors=STATE.only((*ALGORITHM.down, "buffers")),
    nonce=NONCE,
)
UP = Vectors((name, STATE.v if "v" in name else X) for name in ALGORITHM.up)
UP.buffers = STATE.buffers
REPLY = Reply(**HONEST, nonce=NONCE, vectors=UP, metrics={"loss": 0.5})
SENT: Any = reply_record(REPLY)
CAP = ROOM + UP.nbytes()
PICKLE = pickle.dumps(Unpickled())
CODED = {
    name: Codecs.read(f"| delta={name} v_hat=bf16")
    for name in ("int8", "int6", "sub5", "int4", "sub4", "bf16", "eden2")
}
PAYLOADS = {
    name: {
        vector: parcel.payload(vector).numpy().tobytes()
        for parcel in [reply_parcel(REPLY, replace(TASK, codecs=codecs))]
        for vector in parcel.given
    }
    for name, codecs in CODED.items()
}
BOMBS = [zstandard.ZstdCompressor().compress(bytes(size)) for size in (0, 1, 780, 10**4, 10**7)]


@dataclass(frozen=True)
class Other:
    """Another algorithm in a later round, and what the server knows then."""

    algorithm: Algorithm
    state: Vectors
    task: Task

    @classmethod
    def of(cls, name: str) -> Other:
        """Start it, and let what the server adds up point in a direction of both signs."""
        chosen = algorithm(name)
        state = chosen.start(X)
        for total in chosen.sums:
            state[total.into] = Vector((-1.0) ** i * t for i, t in enumerate(X))
        state.buffers = STATE.buffers
        sent = state.only((*chosen.down, "buffers"))
        return cls(chosen, state, replace(TASK, vectors=sent))

    def admission(self, **settings: Any) -> Admission:
        """Start a round of its guard."""
        accounts = Accounts(self.algorithm, self.state, {})
        cohort = [HONEST["client"]]
        return Admission(Guard(), self.algorithm, self.task, cohort, accounts=accounts, **settings)


FEDLADA = Other(ALGORITHM, STATE, TASK)
OTHERS = {
    name: Other.of(name) for name in ("scaffold", "feddyn", "fedlion", "sharedmuon", "fedlalr")
}
"""Algorithms with sums and with shared momenta."""


@dataclass(frozen=True)
class Case:
    """What a client sent, and how the server looks at it."""

    content: RecordDict
    query: bool = False
    known: bool = False
    """Whether the guard has seen earlier rounds."""
    weighting: Any = "uniform"
    codecs: Codecs = field(default_factory=Codecs)
    other: Other | None = None


class Source:
    """Bytes, consumed as choices; when they are used up all choices are the first."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def take(self, count: int) -> bytes:
        """The next bytes, as many as there are."""
        taken = self._data[self._at : self._at + count]
        self._at += len(taken)
        return taken

    def below(self, limit: int) -> int:
        """A number from 0."""
        return int.from_bytes(self.take(1 if limit <= 256 else 2), "little") % limit

    def pick(self, choices: Sequence[Any]) -> Any:
        """One of these, or what it makes."""
        chosen = choices[self.below(len(choices))]
        return chosen() if callable(chosen) else chosen

    def piece(self) -> bytes:
        """Bytes after their own length."""
        return self.take(self.below(65536))

    def text(self) -> str:
        """Any text, also such as cannot be encoded."""
        raw = self.take(self.below(256) * self.pick([1, 1, 1, 8]))
        return raw.decode("utf-8", self.pick(["replace", "surrogateescape"]))

    def rest(self) -> bytes:
        """All that is left."""
        return self.take(len(self._data))


NUMBERS = [0, 1, -1, 7, 2**31, 2**63 - 1, -(2**63), 2**64 - 1, 2**64, 10**400]
FLOATS = [0.0, -0.0, 1.0, -1.0, math.nan, math.inf, -math.inf, 1e308, 5e-324, 1e18, np.float64(2)]
RECORDS = [VECTORS, HEADER, METRICS, "other", ""]
KEYS = [*HONEST, "nonce", "clients", "extra", ""]
NAMES = [*UP, "x", "other", "\x1b[2J", "n" * 101]
TYPES = ["uint8", "float32", "float16", "float64", "complex64", "object", "<U8", "|u1", ""]
DESCRIPTIONS = [b"'|u1'", b"'|O'", b"'<f4'", b"'<f2'", b"'<c8'", b"'<U9'", b"[('a','|u1')]", b"''"]


def number(source: Source) -> Any:
    """Any int or float."""
    return source.pick(
        [
            lambda: source.pick(NUMBERS),
            lambda: source.pick(FLOATS),
            lambda: int.from_bytes(source.take(source.pick([1, 2, 8, 9])), "little", signed=True),
            lambda: struct.unpack("<d", source.take(8).ljust(8, b"\0"))[0],
        ]
    )


def value(source: Source) -> Any:
    """Anything a header can be told to hold."""
    return source.pick(
        [
            lambda: number(source),
            source.text,
            source.piece,
            True,
            lambda: [number(source)] * source.below(4),
            PICKLE,
        ]
    )


def npy(source: Source) -> bytes:
    """A .npy file that may claim anything, or one of another type that is quite in order."""
    if source.pick([True, False]):
        made = BytesIO()
        array = source.pick([np.zeros(46, "f4"), np.zeros(46, "f2"), np.zeros((), "c8")])
        np.save(made, source.pick([array, array.astype("U4"), array.astype(object)]))
        return made.getvalue()
    size = source.pick([46, 8, 0, 45, 47, -1, 2**42, 10**30])
    shape = source.pick([b"(%d,)", b"(%d, 1)", b"(1, %d)", b"()", b"[%d]", b"(%d.0,)"])
    shape = shape % size if b"%" in shape else shape
    order = source.pick([b"False", b"True", b"0", b"()" * 50])
    header = b"{'descr': %s, 'fortran_order': %s, 'shape': %s, }" % (
        source.pick(DESCRIPTIONS),
        order,
        shape,
    )
    header = source.pick([header, header.replace(b" ", b""), b"(" * 90 + header, source.piece])
    header += b" " * source.pick([(-len(header) - 11) % 64, 0, 1, 200, 4000]) + b"\n"
    length = source.pick([len(header), 0, 65535, len(header) + 1])
    version = source.pick([b"\1\0", b"\2\0", b"\3\0", b"\0\0"])
    width = 2 if version == b"\1\0" else 4
    payload = source.pick([bytes(46), bytes(8), PICKLE, source.rest])
    return b"\x93NUMPY" + version + length.to_bytes(width, "little") + header + payload


def spoil_array(source: Source, array: Array) -> Array:
    """An array that is not what it was, or says so."""
    dtype, shape, stype, data = array.dtype, array.shape, array.stype, array.data
    match source.below(9):
        case 0:
            dtype = source.pick([*TYPES, source.text])
        case 1:
            length = source.pick([46, 8, 0, -1, 2**42, 10**30, True])
            shape = source.pick([(length,), (length, 1), (1, length), (), (1,) * 100])
        case 2:
            stype = source.pick(["numpy.ndarray", "torch.tensor", "pickle", "", source.text])
        case 3:
            data = npy(source)
        case 4:
            data = source.pick([PICKLE, b"PK\3\4" + data, data[:8] + PICKLE, source.rest])
        case 5:
            data = data[: source.below(200)] + source.piece()
        case 6:
            flipped = bytearray(data or b"\0")
            for _ in range(source.below(4) + 1):
                flipped[source.below(len(flipped))] ^= 1 << source.below(8)
            data = bytes(flipped)
        case 7:
            tail = source.pick([b"\0\0\xc0\x7f", b"\0\0\x80\xff", b"\xff" * 4, source.piece])
            data = data[: len(data) - len(tail)] + tail
        case 8:
            size = source.pick([46, 8])
            data = data[:-size] + source.take(size).ljust(size, b"\x7f")
    return Array(dtype, shape, stype, data)


def spoil(source: Source, content: RecordDict) -> None:
    """One thing wrong, or more, with what was in order."""
    name, key = source.pick(RECORDS), source.pick(KEYS)
    header, metrics, vectors = (content.get(name) for name in (HEADER, METRICS, VECTORS))
    match source.below(16):
        case 0:
            content.pop(name, None)
        case 1:
            content.pop(name, None)  # else Flower logs a warning
            content[name] = source.pick([ConfigRecord, MetricRecord, ArrayRecord])
        case 2 | 3 if isinstance(header, ConfigRecord):
            header[key] = value(source)
        case 4 if isinstance(header, ConfigRecord):
            header.pop(key, None)
        case 5 if isinstance(metrics, MetricRecord):
            name = source.pick([source.text, "loss", "n" * 101])
            one = number(source)
            metrics[name] = source.pick([one, [one], []])
        case 6 if isinstance(metrics, MetricRecord):
            metrics.update((str(i), 1.0) for i in range(source.pick([99, 100, 101, 999])))
        case 7 if isinstance(vectors, ArrayRecord):
            if taken := vectors.pop(source.pick(NAMES), None):
                vectors[source.pick([*NAMES, source.text])] = taken
        case _ if isinstance(vectors, ArrayRecord) and vectors:
            own = source.pick(list(vectors))
            vectors[own] = spoil_array(source, vectors[own])
            if source.below(50) == 1:
                vectors.update((str(i), vectors[own]) for i in range(source.pick([31, 32, 999])))


def spoiled(source: Source, content: RecordDict) -> RecordDict:
    """The same with some things wrong."""
    for _ in range(source.below(4)):
        with suppress(TypeError, ValueError, OverflowError):  # Flower's records do not take it
            spoil(source, content)
    return content


def reply() -> RecordDict:
    """An honest reply."""
    return RecordDict(
        {
            VECTORS: ArrayRecord(dict(SENT[VECTORS])),
            HEADER: ConfigRecord(dict(SENT[HEADER])),
            METRICS: MetricRecord(dict(SENT[METRICS])),
        }
    )


def opened(payload: bytes) -> bytes | None:
    """What was compressed, unless it is large, spoiled before or not compressed at all."""
    with suppress(zstandard.ZstdError):
        # Before it is opened: the library allocates what the frame claims to hold.
        if 0 < zstandard.get_frame_parameters(payload).content_size <= ROOM:
            return zstandard.ZstdDecompressor().decompress(payload)
    return None


def spoil_payload(source: Source, payload: bytes) -> bytes:
    """Coded bytes that are not what they were."""
    match source.below(7):
        case 0:
            return payload + source.piece()
        case 1:
            return payload[: source.below(1024)]
        case 2:
            at = source.below(len(payload) or 1)
            return payload[:at] + source.take(8) + payload[at + 8 :]
        case 3:
            return payload * source.pick([2, 3])
        case 4:
            return source.pick(BOMBS)
        case 5 if (whole := opened(payload)) is not None:
            plain = bytearray(whole)
            at = source.below(len(plain) or 1)
            plain[at : at + 8] = source.take(8)
            return zstandard.ZstdCompressor().compress(bytes(plain))
        case _:
            return source.rest()


def coded(source: Source) -> tuple[RecordDict, Codecs]:
    """A reply in one of the codecs, with some things wrong, and the codecs."""
    name, content = source.pick(list(CODED)), reply()
    payloads = dict(PAYLOADS[name])
    for _ in range(source.below(4)):
        own = source.pick(list(payloads))
        payloads[own] = spoil_payload(source, payloads[own])
    content[VECTORS] = ArrayRecord(
        {own: Array(np.frombuffer(payload, np.uint8)) for own, payload in payloads.items()}
    )
    return spoiled(source, content) if source.below(4) == 1 else content, CODED[name]


EXTREMES = [3e38, -3e38, 1e-38, -1e-38, 0.0, 1.0, 1.7e308]
"""Finite numbers; in a smaller type the largest counts as the largest that it has."""


def extreme(source: Source) -> tuple[RecordDict, Other]:
    """An algorithm's reply of extreme finite numbers, with some things wrong, and the algorithm."""
    other = source.pick(list(OTHERS.values()))
    vectors = Vectors()
    for name in other.algorithm.up:
        vectors[name] = Vector(
            torch.tensor(
                [min(source.pick(EXTREMES), torch.finfo(t.dtype).max) for _ in range(t.numel())],
                dtype=t.dtype,
            ).view_as(t)
            for t in X
        )
    vectors.buffers = STATE.buffers
    content = reply_record(replace(REPLY, vectors=vectors))
    return spoiled(source, content) if source.below(4) == 1 else content, other


def answer() -> RecordDict:
    """An honest answer to the question which client a node is."""
    return RecordDict({HEADER: ConfigRecord({"client": 3, "clients": 9, "site": "a"})})


def deflated(kind: str, body: bytes, children: Sequence[str] = ()) -> bytes:
    """An object as it travels."""
    return f"{kind} {','.join(children)} {len(body)}".encode() + b"\0" + body


def travelled(source: Source) -> RecordDict | None:
    """A reply whose every object is raw bytes; None if Flower itself cannot make anything of it."""
    header, metrics, array = source.piece(), source.piece(), source.piece()
    content, name = reply(), source.pick(NAMES)
    chunks = Array("", (), "", source.rest()).children
    try:
        content[HEADER] = ConfigRecord.inflate(deflated("ConfigRecord", header))
        content[METRICS] = MetricRecord.inflate(deflated("MetricRecord", metrics))
        content[VECTORS][name] = Array.inflate(deflated("Array", array, list(chunks)), chunks)
    except Exception:  # what happens in there is Flower's; the README says so
        return None
    return content


EXTREME_KIND, CODED_KIND = 6, 7


def case(data: bytes) -> Case | None:
    """What these bytes stand for."""
    source = Source(data)
    kind, look = source.below(8), source.below(4)
    known, weighting = bool(look & 1), "examples" if look & 2 else "uniform"
    if kind == 0:
        return Case(spoiled(source, answer()), query=True)
    if kind == CODED_KIND:
        content, codecs = coded(source)
        return Case(content, known=known, weighting=weighting, codecs=codecs)
    if kind == EXTREME_KIND:
        content, other = extreme(source)
        return Case(content, known=known, weighting=weighting, other=other)
    content = travelled(source) if kind == 1 else spoiled(source, reply())
    return None if content is None else Case(content, known=known, weighting=weighting)


def seeds() -> dict[str, bytes]:
    """Cases to start from: the honest ones."""
    bodies = [SENT[name].deflate().partition(b"\0")[2] for name in (HEADER, METRICS)]
    array = SENT[VECTORS]["delta"]
    meta = {"dtype": "uint8", "shape": array.shape, "stype": array.stype, "arraychunk_ids": [0]}
    pieces = [*bodies, json.dumps(meta).encode()]
    raw = b"".join(len(piece).to_bytes(2, "little") + piece for piece in pieces)
    return {
        "honest-query": b"\0",
        "honest-raw": b"\1\0" + raw + b"\0" + array.data,
        "honest-first": b"\2\0",
        "honest-later": b"\2\1",
        "honest-weighted": b"\2\2",
        **{f"honest-{name}": bytes([CODED_KIND, 0, i]) for i, name in enumerate(CODED)},
    }


def corpus() -> dict[str, bytes]:
    """Return the kept inputs by name; a line of the file is a name and the bytes in hexadecimal."""
    lines = (line.split(" ") for line in CORPUS.read_text().splitlines())
    return {name: bytes.fromhex(digits) for name, digits in lines}


def read(case: Case) -> tuple[int, int, str] | Reply | MalformedReply:
    """What the server makes of the bytes."""
    try:
        if case.query:
            return read_identity(case.content)
        return read_reply(case.content, MANIFEST, case.codecs)
    except MalformedReply as wrong:
        return wrong


def metered(case: Case) -> int:
    """How many bytes reading takes at most; above the cap is a crash."""
    tracemalloc.start()
    try:
        read(case)
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    if most > CAP:
        raise MemoryError(f"{most:,} bytes were allocated where {CAP:,} are allowed")
    return most


def admit(reply: Reply, case: Case) -> Admitted | Rejection:
    """What the guard makes of the reply."""
    other = case.other or FEDLADA
    settings = {"weighting": case.weighting, "updates": int(case.known)}
    names = other.admission(history={}, **settings).quantities if case.known else ()
    history = {name: [(1.0, 0.1, 10)] for name in names}
    admission = other.admission(history=history, **settings)
    measured = admission.measure(reply)
    if isinstance(measured, Rejection):
        return measured
    if admission.limits is None:
        admission.calibrate([measured])
    found = admission.admit(measured)
    if not isinstance(found, Admitted | Rejection):
        raise TypeError(f"the guard made {type(found).__name__} of a reply")
    return found


def run(case: Case) -> tuple[int, int] | MalformedReply | Admitted | Rejection:
    """Take it, or say what is wrong with it; whatever else happens is a crash."""
    found = read(case)
    return admit(found, case) if isinstance(found, Reply) else found
