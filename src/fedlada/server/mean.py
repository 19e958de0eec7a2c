"""A weighted mean that does not depend on the order, or the tree, in which terms are added.

Each coordinate is summed without error as a pair of float64 numbers, the rounded sum and the
rounding error (Knuth's two-sum), and rounded once at the end.  Over float32 terms the pair is
exact while the terms of one coordinate lie within 2^58 of one another, so it is the same in any
order and any tree.  Beyond that, and over float64 terms, its error is below 2^-100 of the largest
term, which almost never changes the rounded result.  Scalars and weights are summed exactly, as
fractions.

Two things make it fast and change no bit.  A sum that the processor did not round
(:mod:`.rounding`) has no error to compute.  And terms are held back until there are a few, so that
the sums, which are larger than any cache, are read and written once for all of them.

Memory does not depend on the number of terms: it is 8 bytes per element, 16 after the first
rounding error, and the terms that are held back.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from functools import partial
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from ..algorithms import Vector, Vectors
from ..algorithms.vectors import BLOCK
from ..errors import require
from .rounding import known_exact

__all__ = ["Mean"]

TOGETHER = 4
"""So many terms are added at a time."""


class Mean:
    """The weighted mean of named vectors and scalars; terms are folded in or merged."""

    is_mean: ClassVar[bool] = True
    weighted: ClassVar[bool] = True
    least: ClassVar[int] = 1

    def __init__(self) -> None:
        self.count = 0
        self._weight = Fraction(0)
        self._totals: dict[str, _Sum] = {}
        self._held: list[tuple[Vectors, float]] = []
        self._scalars: dict[str, tuple[Fraction, Fraction]] = {}
        self._not_finite: set[str] = set()

    def fold(
        self, vectors: Vectors, *, weight: float = 1, scalars: Mapping[str, float] | None = None
    ) -> None:
        """Add one term; its tensors must stay as they are, since it may be held back."""
        require(
            math.isfinite(weight) and weight > 0,
            f"weight is {weight}; it must be positive and finite",
        )
        if not self.count:
            self._totals = {name: _Sum(vector) for name, vector in vectors.items()}
        self._alike(vectors)
        for name, vector in vectors.items():
            self._totals[name].check(vector)
        self._held.append((Vectors(vectors), weight))
        if len(self._held) == TOGETHER:
            self._add_held()
        for name, value in (scalars or {}).items():
            if math.isfinite(value):
                self._add_scalar(name, Fraction(value) * Fraction(weight), Fraction(weight))
            else:
                self._not_finite.add(name)
        self._weight += Fraction(weight)
        self.count += 1

    def combines(self, count: int) -> bool:
        """Return whether so many terms have a mean: one is enough."""
        return count >= self.least

    def merge(self, other: Mean) -> None:
        """Add all the terms of another mean."""
        if not other.count:
            return
        if not self.count:
            self._totals = {name: total.empty() for name, total in other._sums.items()}
        self._alike(other._sums)
        for name, total in other._sums.items():
            self._sums[name].merge(total)
        for name, (value, weight) in other._scalars.items():
            self._add_scalar(name, value, weight)
        self._not_finite |= other._not_finite
        self._weight += other._weight
        self.count += other.count

    def vectors(self) -> Vectors:
        """Return the mean of each vector, rounded once to the terms' type."""
        self._some()
        weight = float(self._weight)
        return Vectors((name, total.over(weight)) for name, total in self._sums.items())

    def scalars(self) -> dict[str, float]:
        """Return the mean of each scalar over the terms that had it; NaN if one was not finite."""
        self._some()
        means = {name: float(value / weight) for name, (value, weight) in self._scalars.items()}
        return means | dict.fromkeys(self._not_finite, math.nan)

    @property
    def _sums(self) -> dict[str, _Sum]:
        """The sums of all terms."""
        self._add_held()
        return self._totals

    def _add_held(self) -> None:
        terms, self._held = self._held, []
        for name, total in self._totals.items():
            total.add([(vectors[name], weight) for vectors, weight in terms])

    def _add_scalar(self, name: str, value: Fraction, weight: Fraction) -> None:
        old, total = self._scalars.get(name, (Fraction(0), Fraction(0)))
        self._scalars[name] = (old + value, total + weight)

    def _alike(self, names: Mapping[str, object]) -> None:
        require(
            set(names) == set(self._totals),
            f"a term has the vectors {', '.join(names)}; this mean is over"
            f" {', '.join(self._totals)}",
        )

    def _some(self) -> None:
        require(self.count > 0, "a mean of nothing: fold or merge at least one term first")


class _Layout(NamedTuple):
    """The shape, strides and type of a tensor."""

    shape: torch.Size
    stride: tuple[int, ...]
    dtype: torch.dtype

    def new(self, device: torch.device) -> Tensor:
        return torch.empty_strided(self.shape, self.stride, dtype=self.dtype, device=device)


_Block = tuple[int, Tensor, list[tuple[Tensor, Tensor]]]
"""The start of a block, its buffer, and pieces of a vector with their places in the buffer."""


class _Sum:
    """The error-free sum of vectors of one shape, block by block over all their tensors."""

    def __init__(self, like: Vector) -> None:
        self._like = [_Layout(t.shape, t.stride(), t.dtype) for t in like]
        device = like.tensors[0].device if len(like) else None
        self._high = torch.zeros(like.numel(), dtype=torch.float64, device=device)
        self._errors: Tensor | None = None
        self._scratch = self._high.new_empty(3, min(BLOCK, len(self._high)))
        self._plan = _plan([t.numel() for t in like])

    @property
    def _low(self) -> Tensor:
        """The rounding errors; they take no memory until there is one."""
        if self._errors is None:
            self._errors = torch.zeros_like(self._high)
        return self._errors

    def empty(self) -> _Sum:
        """Return an empty sum of the same shape."""
        return _Sum(self._new())

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

    def merge(self, other: _Sum) -> None:
        """Add another sum."""
        for start, term in self._terms():
            part = other._high[start : start + len(term)]
            self._add_block([(start, term, [(part, term)])], [1])
        if other._errors is not None:
            self._low.add_(other._errors)

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
