"""A vector as rows of ``BLOCK`` float32 numbers: each tensor begins a new row, padded with 0."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from ...algorithms import Vector
from ..manifest import DTYPES, Layout
from .bits import BLOCK

__all__ = ["CHUNK", "chunks_of", "count", "rows_of", "vector_of"]

CHUNK = 512
"""Number of rows that are coded at a time: they fit into the processor's cache."""
AT_ONCE = CHUNK * BLOCK
"""Number of elements that are coded at a time; if one tensor has them all, without a copy."""


def count(layout: Layout) -> int:
    """Return the number of rows of a vector."""
    return sum(_rows(entry.numel) for entry in layout)


def rows_of(vector: Vector) -> int:
    """Return the number of rows of a vector."""
    return sum(_rows(t.numel()) for t in vector)


def chunks_of(vector: Vector) -> Iterator[tuple[slice, Tensor]]:
    """Yield the rows of a vector, which must not be changed, a few at a time, with their place."""
    room, first, end = torch.empty(AT_ONCE), 0, 0
    for t in vector:
        flat, start = t.detach().reshape(-1), 0
        while start < flat.numel():
            piece = flat[start : start + AT_ONCE - end]
            start, begin, end = start + piece.numel(), end, end + piece.numel()
            whole = piece.numel() == AT_ONCE and piece.dtype == room.dtype
            if not whole:
                room[begin:end] = piece
                begin, end = end, _rows(end) * BLOCK
                room[begin:end] = 0
            if end == AT_ONCE:
                yield slice(first, first + CHUNK), (piece if whole else room).view(-1, BLOCK)
                first, end = first + CHUNK, 0
    if end:
        yield slice(first, first + end // BLOCK), room[:end].view(-1, BLOCK)


def vector_of(layout: Layout, write: Callable[[slice, Tensor], None]) -> Vector:
    """Return the vector of a layout whose rows ``write`` makes a few at a time.

    ``write`` gets their position among all rows, and the memory to write them to.
    """
    vector = Vector(torch.empty(entry.shape, dtype=DTYPES[entry.dtype]) for entry in layout)
    room, numbers, place, end = torch.empty(AT_ONCE), count(layout) * BLOCK, 0, 0
    for t in vector:
        flat, start = t.view(-1), 0
        while start < flat.numel():
            ahead = place == end  # of what is written
            if ahead:
                first, end = end, min(end + AT_ONCE, numbers)
            piece = flat[start : start + end - place]
            whole = piece.numel() == AT_ONCE and piece.dtype == room.dtype
            if ahead:
                made = piece if whole else room[: end - first]
                write(slice(first // BLOCK, end // BLOCK), made.view(-1, BLOCK))
            if not whole:
                piece.copy_(room[place - first :][: piece.numel()])
            start, place = start + piece.numel(), place + piece.numel()
        place = _rows(place) * BLOCK
    return vector


def _rows(numel: int) -> int:
    return -(-numel // BLOCK)
