"""A vector as rows of ``BLOCK`` float32 numbers: each tensor begins a row, and is padded with 0."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from ...algorithms import Vector
from ..manifest import DTYPES, Layout
from .bits import BLOCK

__all__ = ["CHUNK", "chunks", "count", "from_rows", "to_rows"]

CHUNK = 256
"""Rows that are coded at a time: few enough to stay in the processor's cache."""


def count(layout: Layout) -> int:
    """Return the number of rows of a vector."""
    return sum(_rows(entry.numel) for entry in layout)


def to_rows(vector: Vector) -> Tensor:
    """Return the numbers of a vector in rows."""
    rows = torch.empty(sum(_rows(t.numel()) for t in vector), BLOCK)
    flat, start = rows.view(-1), 0
    for t in vector:
        end, next_row = start + t.numel(), start + _rows(t.numel()) * BLOCK
        flat[start:end] = t.detach().reshape(-1)
        flat[end:next_row] = 0
        start = next_row
    return rows


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
