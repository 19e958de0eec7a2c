"""The error-free sum of vectors of one shape, and how it crosses to another process.

Each coordinate is a pair of float64 numbers, the rounded sum and the rounding error.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from ..algorithms import Vector
from ..algorithms.vectors import BLOCK
from ..errors import require
from .plain import Tensors, alike
from .rounding import known_exact

__all__ = ["HIGH", "LOW", "Sum"]

HIGH, LOW = "high", "low"
"""The names of the rounded sum and of the rounding errors among a tally's tensors."""


class _Layout(NamedTuple):
    """The shape, strides and type of a tensor."""

    shape: torch.Size
    stride: tuple[int, ...]
    dtype: torch.dtype

    @property
    def dense(self) -> bool:
        """Whether the elements lie in the order of their indices."""
        return torch.empty(self.shape, device="meta").stride() == self.stride

    def new(self, device: torch.device) -> Tensor:
        return torch.empty_strided(self.shape, self.stride, dtype=self.dtype, device=device)


_Block = tuple[int, Tensor, list[tuple[Tensor, Tensor]]]
"""The start of a block, its buffer, and pieces of a vector with their places in the buffer."""


class Sum:
    """The error-free sum of vectors of one shape, block by block over all their tensors."""

    def __init__(self, like: Vector, high: Tensor | None = None, low: Tensor | None = None) -> None:
        """Start at zero, or at these two parts."""
        self._like = [_Layout(t.shape, t.stride(), t.dtype) for t in like]
        if high is None:
            device = like.tensors[0].device if len(like) else None
            high = torch.zeros(like.numel(), dtype=torch.float64, device=device)
        self._high, self._errors = high, low
        self._scratch = self._high.new_empty(3, min(BLOCK, len(self._high)))
        self._plan = _plan([t.numel() for t in like])

    @classmethod
    def read(cls, tensors: Tensors, name: str, like: Vector) -> Sum:
        """Return the sum of a name whose parts are among the tensors."""
        flat = Vector([torch.empty(like.numel(), dtype=torch.float64, device="meta")])
        names = [f"{part}:{name}" for part in (HIGH, LOW) if f"{part}:{name}" in tensors]
        parts = [alike(tensors, part, flat).tensors[0] for part in names]
        dense = Vector(torch.empty_like(t, memory_format=torch.contiguous_format) for t in like)
        return cls(like, *cls(like, *parts)._ordered(cls(dense, *parts)))

    def written(self, name: str) -> dict[str, list[Tensor]]:
        """Return the parts by name, each tensor's elements in the order of its indices."""
        parts = {HIGH: self._high} | ({} if self._errors is None else {LOW: self._errors})
        if not all(like.dense for like in self._like):
            parts = {
                part: torch.cat([t.reshape(-1) for t in self._split(flat)])
                for part, flat in parts.items()
            }
        return {f"{part}:{name}": [flat] for part, flat in parts.items()}

    @property
    def _low(self) -> Tensor:
        """The rounding errors; they take no memory until there is one."""
        if self._errors is None:
            self._errors = torch.zeros_like(self._high)
        return self._errors

    def empty(self) -> Sum:
        """Return an empty sum of the same shape."""
        return Sum(self._new())

    def check(self, vector: Vector) -> None:
        """Raise unless ``vector`` can be added."""
        require(
            len(vector) == len(self._like),
            f"a term has {len(vector)} tensors; this mean is over {len(self._like)}",
        )
        for t, like in zip(vector, self._like, strict=True):
            if (t.shape, t.dtype) != (like.shape, like.dtype):
                raise ValueError(
                    f"a term is {t.dtype} of shape {tuple(t.shape)}; this mean is over"
                    f" {like.dtype} of shape {tuple(like.shape)}"
                )

    def add(self, terms: Sequence[tuple[Vector, float]]) -> None:
        """Add weighted vectors; a product with an integer below 2^29 is exact in float32."""
        weights = [weight for _, weight in terms]
        for blocks in zip(*(self._blocks(vector) for vector, _ in terms), strict=True):
            self._add_block(blocks, weights)

    def _add_block(self, blocks: Sequence[_Block], weights: Sequence[float]) -> None:
        """Add the weighted terms of one block."""
        if known_exact(partial(self._plain_sum, blocks, weights), self._high.device):
            start, buffer, _ = blocks[0]
            self._high[start : start + len(buffer)].copy_(self._scratch[1, : len(buffer)])
        else:
            for start, term in _loaded(blocks, weights):
                self._two_sum(start, term)

    def _plain_sum(self, blocks: Sequence[_Block], weights: Sequence[float]) -> None:
        """Set the second row of the scratch to the rounded sum and all terms of a block."""
        start, buffer, _ = blocks[0]
        total = self._scratch[1, : len(buffer)].copy_(self._high[start : start + len(buffer)])
        for _, term in _loaded(blocks, weights):
            total.add_(term)

    def merge(self, other: Sum) -> None:
        """Add another sum."""
        high, low = self._ordered(other)
        for start, term in self._terms():
            part = high[start : start + len(term)]
            self._add_block([(start, term, [(part, term)])], [1])
        if low is not None:
            self._low.add_(low)

    def over(self, weight: float) -> Vector:
        """Return the sum divided by the weight, rounded once to the terms' type."""
        result = self._new()
        for start, term, pieces in self._blocks(result):
            block = slice(start, start + len(term))
            high = self._high[block]
            # An infinite sum has the error NaN or none, as terms came: let it be NaN always.
            torch.sub(high, high, out=term).add_(high)
            if self._errors is not None:
                term.add_(self._errors[block])
            term.div_(weight)
            for piece, part in pieces:
                piece.copy_(part)
        return result

    def _ordered(self, other: Sum) -> tuple[Tensor, Tensor | None]:
        """Return the other sum's parts with their elements in the order of this sum's."""
        if [like.stride for like in other._like] == [like.stride for like in self._like]:
            return other._high, other._errors
        return self._reordered(other, other._high), (
            None if other._errors is None else self._reordered(other, other._errors)
        )

    def _reordered(self, other: Sum, theirs: Tensor) -> Tensor:
        own = torch.empty_like(theirs)
        for t, u in zip(self._split(own), other._split(theirs), strict=True):
            t.copy_(u)
        return own

    def _split(self, flat: Tensor) -> list[Tensor]:
        """Return a view of each tensor's elements in its own shape."""
        pieces = torch.split(flat, [like.shape.numel() for like in self._like])
        return [
            piece.as_strided(like.shape, like.stride, piece.storage_offset())
            for piece, like in zip(pieces, self._like, strict=True)
        ]

    def _new(self) -> Vector:
        return Vector(like.new(self._high.device) for like in self._like)

    def _terms(self) -> Iterator[tuple[int, Tensor]]:
        """Yield the start of each block and a buffer for its term."""
        for start, length, _ in self._plan:
            yield start, self._scratch[0, :length]

    def _blocks(self, vector: Vector) -> Iterator[_Block]:
        """Yield the same with pairs of a piece of ``vector`` and its place in the buffer."""
        flats = [_flat(t, like) for t, like in zip(vector, self._like, strict=True)]
        for (start, term), (_, _, pieces) in zip(self._terms(), self._plan, strict=True):
            yield start, term, [(flats[i][own], term[place]) for i, own, place in pieces]

    def _two_sum(self, start: int, term: Tensor) -> None:
        """Add a block's term to the rounded sum, and the rounding error to the low part."""
        length = term.numel()
        high, low = self._high[start : start + length], self._low[start : start + length]
        rounded, back = self._scratch[1, :length], self._scratch[2, :length]
        torch.add(high, term, out=rounded)
        torch.sub(rounded, high, out=back)
        term.sub_(back)
        high.add_(back.sub_(rounded)).add_(term)
        low.add_(high)
        high.copy_(rounded)


def _loaded(blocks: Sequence[_Block], weights: Sequence[float]) -> Iterator[tuple[int, Tensor]]:
    """Yield the start of a block and each weighted term of it, in the same buffer."""
    for (start, term, pieces), weight in zip(blocks, weights, strict=True):
        for piece, part in pieces:
            part.copy_(piece)
        yield start, term if weight == 1 else term.mul_(weight)


def _plan(sizes: list[int]) -> list[tuple[int, int, list[tuple[int, slice, slice]]]]:
    """Return blocks over tensors laid end to end.

    Each block is its start, its length and its pieces; a piece is a tensor's number, the elements
    of the tensor and their place in the block.
    """
    total = sum(sizes)
    blocks: list[tuple[int, int, list[tuple[int, slice, slice]]]] = [
        (start, min(BLOCK, total - start), []) for start in range(0, total, BLOCK)
    ]
    begin = 0
    for i, size in enumerate(sizes):
        for start, length, pieces in blocks[begin // BLOCK : -(-(begin + size) // BLOCK)]:
            first, last = max(begin, start), min(begin + size, start + length)
            own = slice(first - begin, last - begin)
            pieces.append((i, own, slice(first - start, last - start)))
        begin += size
    return blocks


def _flat(t: Tensor, like: _Layout) -> Tensor:
    """Return a dense tensor's elements in the order of ``like``, as a view if possible."""
    if t.stride() != like.stride:
        t = like.new(t.device).copy_(t)
    return t.as_strided((t.numel(),), (1,))
