"""A vector as rows of ``BLOCK`` float32 numbers: each tensor begins a row, and is padded with 0."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from ...algorithms import Vector
from ..manifest import DTYPES, Layout
from .bits import BLOCK

__all__ = ["CHUNK", "chunks", "chunks_of", "count", "from_rows", "rows_of"]

CHUNK = 256
"""Rows that are coded at a time: few enough to stay in the processor's cache."""


def count(layout: Layout) -> int:
    """Return the number of rows of a vector."""
    return sum(_rows(entry.numel) for entry in layout)


def rows_of(vector: Vector) -> int:
    """Return the number of rows of a vector."""
    return sum(_rows(t.numel()) for t in vector)


def chunks_of(vector: Vector, at_once: int = CHUNK) -> Iterator[tuple[slice, Tensor]]:
    """Yield the rows of a vector a few at a time, with their place among all rows.

    They lie in the same memory every time, which the receiver may write to.
    """
    room = torch.empty(at_once * BLOCK)
    first = end = 0
    for t in vector:
        flat, start = t.detach().reshape(-1), 0
        while start < flat.numel():
            piece = flat[start : start + room.numel() - end]
            start, begin, end = start + piece.numel(), end, end + piece.numel()
            room[begin:end] = piece
            begin, end = end, _rows(end) * BLOCK
            room[begin:end] = 0
            if end == room.numel():
                yield slice(first, first + at_once), room.view(-1, BLOCK)
                first, end = first + at_once, 0
    if end:
        yield slice(first, first + end // BLOCK), room[:end].view(-1, BLOCK)


def from_rows(rows: Tensor, layout: Layout) -> Vector:
    """Return the vector of a layout from its rows."""
    flat, start, tensors = rows.view(-1), 0, []
    for entry in layout:
        own = flat[start : start + entry.numel]
        tensors.append(own.to(DTYPES[entry.dtype]).view(entry.shape))
        start += _rows(entry.numel) * BLOCK
    return Vector(tensors)


def chunks(rows: int, at_once: int = CHUNK) -> Iterator[slice]:
    """Yield the rows that are coded at a time."""
    for start in range(0, rows, at_once):
        yield slice(start, min(start + at_once, rows))


def _rows(numel: int) -> int:
    return -(-numel // BLOCK)
