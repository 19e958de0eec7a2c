"""The error-free sum of vectors of one shape.

Each coordinate is a pair of float64 numbers: the rounded sum and the rounding error.  The rounding
error of an addition takes six more operations.  They are rarely needed, because a float64 sum of a
few float32 numbers is nearly always exact, and the processor says so: IEEE 754 has a flag,
*inexact*, that stays set once any element of any operation was rounded.  Reading it costs nothing.
It halves the server's time per reply, and while no error occurred, the errors take no memory.

The flag belongs to a thread, and torch does not promise to compute in the caller's thread.  So the
flag is tested before its first use, in every part of a block.  If it misses one rounding, or is set
by an exact sum, it is never used, and the rounding error of every sum is computed.
"""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...algorithms import Vector
from ...devices import BLOCK, block_of
from ...errors import require
from ...protocol.strict import Tensors, alike

__all__ = ["HIGH", "LOW", "ExactSum"]

HIGH, LOW = "high", "low"
"""The names of the rounded sum and of the rounding errors among a tally's tensors."""

FE_INEXACT = {"x86_64": 0x20, "aarch64": 0x10, "arm64": 0x10}.get(platform.machine(), 0)
"""The number of the flag in fenv.h on this processor; 0 if unknown."""

PARTS = 64
"""The number of places of a block in which the flag is tested."""


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


class ExactSum:
    """The error-free sum of vectors of one shape, block by block over all their tensors."""

    def __init__(self, like: Vector, high: Tensor | None = None, low: Tensor | None = None) -> None:
        """Start at zero, or at these two parts."""
        self._like = [_Layout(t.shape, t.stride(), t.dtype) for t in like]
        self._dense = all(layout.dense for layout in self._like)
        if high is None:
            high = torch.zeros(like.numel(), dtype=torch.float64, device=like.device)
        self._high, self._errors = high, low
        block = block_of(self._high.device)
        self._scratch = self._high.new_empty(3, min(block, len(self._high)))
        self._plan = _plan([t.numel() for t in like], block)

    @classmethod
    def read(cls, tensors: Tensors, name: str, like: Vector) -> ExactSum:
        """Return the sum of a name whose parts are among the tensors."""
        flat = Vector([torch.empty(like.numel(), dtype=torch.float64, device="meta")])
        names = [f"{part}:{name}" for part in (HIGH, LOW) if f"{part}:{name}" in tensors]
        parts = [alike(tensors, part, flat).on(like.device).tensors[0] for part in names]
        dense = Vector(torch.empty_like(t, memory_format=torch.contiguous_format) for t in like)
        return cls(like, *cls(like, *parts)._ordered(cls(dense, *parts)))

    def written(self, name: str) -> dict[str, list[Tensor]]:
        """Return the parts by name, each tensor's elements in the order of its indices."""
        parts = {HIGH: self._high} | ({} if self._errors is None else {LOW: self._errors})
        if not self._dense:
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

    def empty(self) -> ExactSum:
        """Return an empty sum of the same shape."""
        return ExactSum(self._new())

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

    def merge(self, other: ExactSum) -> None:
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
            # The error of an infinite sum depends on the order of the terms: return NaN always.
            torch.sub(high, high, out=term).add_(high)
            if self._errors is not None:
                term.add_(self._errors[block])
            term.div_(weight)
            for piece, part in pieces:
                piece.copy_(part)
        return result

    def exact(self) -> Vector:
        """Return the sum in float64, each tensor in its own shape."""
        total = self._high if self._errors is None else self._high + self._errors
        return Vector(t.contiguous() for t in self._split(total))

    def _ordered(self, other: ExactSum) -> tuple[Tensor, Tensor | None]:
        """Return the other sum's parts with their elements in the order of this sum's."""
        if [like.stride for like in other._like] == [like.stride for like in self._like]:
            return other._high, other._errors
        return self._reordered(other, other._high), (
            None if other._errors is None else self._reordered(other, other._errors)
        )

    def _reordered(self, other: ExactSum, theirs: Tensor) -> Tensor:
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
        """Yield each block with the pieces of ``vector`` in it and their places in the buffer."""
        row = vector.row() if self._dense else None
        if row is not None:  # one piece instead of one of each tensor
            yield from ((n, part, [(row[n : n + len(part)], part)]) for n, part in self._terms())
            return
        flats = [_flat(t, like) for t, like in zip(vector, self._like, strict=True)]
        for (start, term), (_, _, pieces) in zip(self._terms(), self._plan, strict=True):
            yield start, term, [(flats[i][own], term[place]) for i, own, place in pieces]

    def _two_sum(self, start: int, term: Tensor) -> None:
        """Add a block's term to the rounded sum, and the rounding error to the low part.

        This is Knuth's two-sum: with s = high + term rounded and b = s - high, the error of s is
        (high - (s - b)) + (term - b), without rounding.  ``high`` holds it until s replaces it.
        """
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


def _plan(sizes: list[int], size: int) -> list[tuple[int, int, list[tuple[int, slice, slice]]]]:
    """Return blocks of a size over tensors laid end to end.

    Each block is its start, its length and its pieces; a piece is a tensor's number, the elements
    of the tensor and their place in the block.
    """
    total = sum(sizes)
    blocks: list[tuple[int, int, list[tuple[int, slice, slice]]]] = [
        (start, min(size, total - start), []) for start in range(0, total, size)
    ]
    begin = 0
    for i, numel in enumerate(sizes):
        for start, length, pieces in blocks[begin // size : -(-(begin + numel) // size)]:
            first, last = max(begin, start), min(begin + numel, start + length)
            own = slice(first - begin, last - begin)
            pieces.append((i, own, slice(first - start, last - start)))
        begin += numel
    return blocks


def _flat(t: Tensor, like: _Layout) -> Tensor:
    """Return a dense tensor's elements in the order of ``like``, as a view if possible."""
    if t.stride() != like.stride:
        t = like.new(t.device).copy_(t)
    return t.as_strided((t.numel(),), (1,))


def known_exact(operation: Callable[[], object], device: torch.device) -> bool:
    """Run an operation on this device and return True if it rounded no element.

    Return False without running it if rounding cannot be detected.
    """
    works = device.type == "cpu" and _works(torch.get_num_threads())
    return works and not _rounds(operation)


def _rounds(operation: Callable[[], object]) -> bool:
    """Run an operation and return whether it raised the flag."""
    library = _library()
    library.feclearexcept(FE_INEXACT)
    operation()
    return bool(library.fetestexcept(FE_INEXACT))


@cache
def _works(threads: int) -> bool:
    """Test the flag: it must show one rounding in any place, and must not show an exact sum."""
    if not FE_INEXACT or not hasattr(_library(), "fetestexcept"):
        return False
    a, b = torch.ones(2, BLOCK, dtype=torch.float64)
    out = torch.empty_like(a)
    if _rounds(lambda: torch.add(a, b, out=out)):
        return False
    for i in [*range(0, BLOCK, BLOCK // PARTS), BLOCK - 1]:
        b[i] = 2.0**-60  # vanishes beside 1
        if not _rounds(lambda: torch.add(a, b, out=out)):
            return False
        b[i] = 1
    return True


@cache
def _library() -> Any:
    """Return the C library that this process has loaded; None on Windows."""
    return None if platform.system() == "Windows" else ctypes.PyDLL(None)
