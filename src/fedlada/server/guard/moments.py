r"""How far a second moment of a reply rose above the one that was sent, and pulling it back.

The measure is :math:`\sum|\sqrt{\hat v_i}-\sqrt v|`: on the scale of the root, which is what
divides a step, and a sum of lengths rather than of squares, so that a little on every coordinate
weighs as much as a lot on a few.
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
    """How far a second moment rose, and whether an element is lower than it can be."""

    size: float
    low: bool


class SecondMoment:
    """The second moment that went to the clients of a round, as the floor of what they send."""

    def __init__(self, sent: Vector, *, rising: bool) -> None:
        """``rising``: honest clients never send less than they got; else, less than 0."""
        self._sent = sent
        self._floor = sent if rising else sent.zeros_like()
        self._root = sent.sqrt()
        self.size = sum(float(t.sum()) for t in self._root)
        """The sum of the root."""
        self._room = {t.dtype: torch.empty(BLOCK, dtype=t.dtype, device=t.device) for t in sent}

    def rise(self, vector: Vector) -> Rise:
        """Measure a client's; the size is not finite if, and only if, an element is not."""
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
        """No lower than it can be."""
        return _each(torch.maximum, vector, self._floor)

    def boxed(self, vector: Vector, largest_gradient: float) -> Vector:
        """No higher than the largest gradient allows; the same vector if it is not."""
        top = Vector(t.clamp_min(largest_gradient**2) for t in self._sent)
        inside = all(bool((t <= u).all()) for t, u in zip(vector, top, strict=True))
        return vector if inside else _each(torch.minimum, vector, top)

    def pulled(self, vector: Vector, factor: float) -> Vector:
        """A fraction of the way, on the scale of the root, from what was sent."""
        root = self._root.add(vector.sqrt() - self._root, alpha=factor)
        return _each(torch.maximum, root * root, self._floor)


def _each(operation: Callable[[Tensor, Tensor], Tensor], a: Vector, b: Vector) -> Vector:
    return Vector(operation(t, u) for t, u in zip(a, b, strict=True))
