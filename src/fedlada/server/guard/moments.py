r"""Measures how far a reply's second moment rose above the one sent, and pulls it back.

The measure is :math:`\sum|\sqrt{\hat v_i}-\sqrt v|`.  It is on the scale of the root, which
divides a step.  It sums lengths rather than squares, so that a small rise in every coordinate
counts as much as a large rise in a few.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from ...algorithms import Vector
from ...algorithms.vectors import BLOCK

__all__ = ["Rise", "SecondMoment"]


class Rise(NamedTuple):
    """How far a second moment rose, and whether an element is below the lowest possible value."""

    size: float
    low: bool


class SecondMoment:
    """The second moment that was sent to the clients of a round, as a floor for their replies."""

    def __init__(self, sent: Vector, *, rising: bool) -> None:
        """Set the floor of honest replies: the sent moment if it is ``rising``, else 0."""
        self._sent = sent
        self._floor = sent if rising else sent.zeros_like()
        self._root = sent.sqrt()
        self.size = sum(float(t.sum()) for t in self._root)
        """The sum of the elements of the root."""
        self._room = {t.dtype: torch.empty(BLOCK, dtype=t.dtype, device=t.device) for t in sent}

    def rise(self, vector: Vector) -> Rise:
        """Return a reply's rise; its size is not finite if, and only if, an element is not."""
        size, lowest = 0.0, math.inf
        for t, floor, root in zip(vector, self._floor, self._root, strict=True):
            flat, floor, root = t.reshape(-1), floor.reshape(-1), root.reshape(-1)
            for start in range(0, flat.numel(), BLOCK):
                block = slice(start, start + BLOCK)
                piece, work = flat[block], self._room[t.dtype][: len(flat[block])]
                low = float(torch.sub(piece, floor[block], out=work).amin())
                torch.clamp_min(piece, 0, out=work).sqrt_().sub_(root[block]).abs_()
                # The clamp hides -inf from the sum, and min() may hide NaN.
                size += float(work.sum()) if math.isfinite(low) else math.nan
                lowest = min(lowest, low)
        return Rise(size, lowest < 0)

    def raised(self, vector: Vector) -> Vector:
        """Return the vector with all elements raised to the floor where they are below it."""
        return _each(torch.maximum, vector, self._floor)

    def boxed(self, vector: Vector, largest_gradient: float) -> Vector:
        """Return the vector capped by the largest gradient; the same object if none is above."""
        top = Vector(t.clamp_min(largest_gradient**2) for t in self._sent)
        inside = all(bool((t <= u).all()) for t, u in zip(vector, top, strict=True))
        return vector if inside else _each(torch.minimum, vector, top)

    def pulled(self, vector: Vector, factor: float) -> Vector:
        """Return the vector with its rise, on the scale of the root, multiplied by ``factor``."""
        root = self._root.add(vector.sqrt() - self._root, alpha=factor)
        return _each(torch.maximum, root * root, self._floor)


def _each(operation: Callable[[Tensor, Tensor], Tensor], a: Vector, b: Vector) -> Vector:
    return Vector(operation(t, u) for t, u in zip(a, b, strict=True))
