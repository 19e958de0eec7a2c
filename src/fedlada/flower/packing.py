"""A vector as one array of bytes, and back, whatever somebody else put in its place.

A packed vector is the bytes of its tensors, end to end, as unsigned bytes: any dtype travels,
also those numpy does not know.  The manifest gives names, dtypes and shapes; both sides derive it
from their own model, and it must be the same.

Flower wraps an array's bytes in the .npy format.  For a vector of known size there is one header
it can have, so the header is compared and never parsed: what it claims allocates nothing, and
nothing in it is evaluated or unpickled.
"""

from __future__ import annotations

import json
import warnings
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from flwr.app import Array
from torch import Tensor, nn

from ..algorithms import Vector, require
from ..parameters import BufferPolicy, federated_names

__all__ = ["MalformedReply", "Manifest", "packed"]

DTYPES = {
    str(dtype): dtype for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64)
}
MAGIC = b"\x93NUMPY\x01\x00"
"""How .npy version 1.0 begins; two bytes with the header's length follow."""
LONGEST_HEADER = 128
"""Bytes of it at most; numpy writes 118."""

with warnings.catch_warnings():
    # Torch warns, once in a process, that bytes are not writable; nothing here writes to them.
    warnings.simplefilter("ignore")
    torch.frombuffer(b"\0", dtype=torch.uint8)


class MalformedReply(ValueError):
    """What came is not a reply at all; the reason is one of a few fixed phrases."""


class Entry(NamedTuple):
    """A tensor of a vector."""

    name: str
    dtype: str
    shape: list[int]

    def __str__(self) -> str:
        return f"{self.name[:200]} ({self.dtype[:20].removeprefix('torch.')} {self.shape[:10]})"

    @property
    def nbytes(self) -> int:
        return torch.Size(self.shape).numel() * DTYPES[self.dtype].itemsize


Layout = list[Entry]


@dataclass(frozen=True)
class Manifest:
    """Names, dtypes and shapes of the tensors of a vector, for parameters and for buffers."""

    parameters: Layout
    buffers: Layout

    @classmethod
    def of(cls, model: nn.Module, buffers: BufferPolicy) -> Manifest:
        """The manifest of a model."""
        tensors = model.state_dict(keep_vars=True)
        names = federated_names(model, buffers)
        return cls(
            [_entry(name, tensors[name]) for name in names["parameters"]],
            [_entry(name, tensors[name]) for name in names["buffers"]],
        )

    def text(self) -> str:
        """The manifest as it travels."""
        return json.dumps([self.parameters, self.buffers])

    def check(self, other: str) -> None:
        """Raise, saying where, unless another side's manifest is this one."""
        if other == self.text():
            return
        for kind, ours, theirs in zip(
            ("parameters", "buffers"), (self.parameters, self.buffers), _layouts(other), strict=True
        ):
            require(
                len(ours) == len(theirs),
                f"the server's model has {len(theirs)} {kind}, this client's has {len(ours)}; both"
                " must build the same model",
            )
            for mine, yours in zip(ours, theirs, strict=True):
                require(
                    mine == yours,
                    f"the server's model has {yours} where this client's has {mine}; both must"
                    " build the same model",
                )

    def layout(self, vector: str) -> Layout:
        """The layout of a vector by its name."""
        return self.buffers if vector == "buffers" else self.parameters

    def unpack(self, name: str, array: Array, *, copy: bool = True) -> Vector:
        """A packed vector's tensors.

        Without ``copy`` they share the array's memory, which must then never be written to.
        """
        layout = self.layout(name)
        sizes = [entry.nbytes for entry in layout]
        data = _payload(array, sum(sizes), copy=copy)
        pieces = zip(torch.split(data, sizes), layout, strict=True)
        return Vector(_tensor(piece, entry) for piece, entry in pieces)


def packed(vector: Vector) -> Array:
    """A vector as one array of bytes."""
    flat = [t.detach().cpu().contiguous().reshape(-1).view(torch.uint8) for t in vector]
    data: np.ndarray[Any, np.dtype[np.uint8]] = torch.cat(
        flat or [torch.empty(0, dtype=torch.uint8)]
    ).numpy()
    return Array(data)


def _payload(array: Array, size: int, *, copy: bool) -> Tensor:
    """The bytes of an array that must hold so many."""
    data = array.data
    if (array.dtype, array.stype) != ("uint8", "numpy.ndarray") or array.shape != (size,):
        raise MalformedReply("wrong type or shape of a vector")
    if type(data) is not bytes or not size <= len(data) - len(MAGIC) - 2 <= size + LONGEST_HEADER:
        raise MalformedReply("wrong length of a vector")
    start = len(data) - size
    length, header = data[len(MAGIC) : len(MAGIC) + 2], data[len(MAGIC) + 2 : start]
    only = f"{{'descr': '|u1', 'fortran_order': False, 'shape': ({size},), }}".encode()
    if (
        not data.startswith(MAGIC)
        or int.from_bytes(length, "little") != len(header)
        or header.rstrip() != only
    ):
        raise MalformedReply("wrong header of a vector")
    if not size:
        return torch.empty(0, dtype=torch.uint8)
    if copy:  # by numpy, which asks for huge pages: quicker than torch's clone
        return torch.from_numpy(np.frombuffer(data, dtype=np.uint8, offset=start).copy())
    return torch.frombuffer(data, dtype=torch.uint8, offset=start)


def _tensor(piece: Tensor, entry: Entry) -> Tensor:
    dtype = DTYPES[entry.dtype]
    if piece.data_ptr() % dtype.itemsize or piece.storage_offset() % dtype.itemsize:
        piece = piece.clone()
    return piece.view(dtype).view(entry.shape)


def _entry(name: str, t: Tensor) -> Entry:
    require(
        str(t.dtype) in DTYPES,
        f"{name} is {t.dtype}; what travels must be one of {', '.join(DTYPES)}",
    )
    return Entry(name, str(t.dtype), list(t.shape))


def _layouts(text: str) -> list[Layout]:
    """Another side's manifest, which may be any text."""
    sentence = "what the server sent is not the manifest of a model; both must run the same fedlada"
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as wrong:
        raise ValueError(sentence) from wrong
    require(
        isinstance(found, list)
        and len(found) == 2
        and all(isinstance(layout, list) and all(map(_is_entry, layout)) for layout in found),
        sentence,
    )
    return [[Entry(*entry) for entry in layout] for layout in found]


def _is_entry(entry: object) -> bool:
    return (
        isinstance(entry, list)
        and [type(part) for part in entry] == [str, str, list]
        and all(type(size) is int for size in entry[2])
    )
