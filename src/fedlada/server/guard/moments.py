r"""Measures how far a reply's second moment rose above the one sent, and pulls it back.

The measure is :math:`\sum|\sqrt{\hat v_i}-\sqrt v| / \sum\sqrt w`, over all tensors and over
each, where v is what this client was sent and w what all are sent now: the same, unless the reply
is late.  It is on the scale of the root, which divides a step.  It sums lengths rather than
squares, so that a small rise in every coordinate counts as much as a large rise in a few.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ...algorithms import Vector
from ...devices import block_of, numbers

__all__ = ["Rise", "SecondMoment"]


class Rise(NamedTuple):
    """How far a second moment rose, and whether an element is below the lowest possible value."""

    whole: float
    tensors: list[float]
    """The rise of each tensor relative to its own root plus the mean root of all."""
    low: bool


class SecondMoment:
    """The second moment that was sent to the clients of a round, as a floor for their replies."""

    def __init__(self, sent: Vector, *, rising: bool, now: Vector | None = None) -> None:
        """Set the floor of honest replies: the sent moment if it is ``rising``, else 0.

        ``now`` is the moment that is sent now, if these clients were sent another: from that of the
        first round, which is almost 0, every rise would be enormous.
        """
        self.rising = rising
        self._floor = sent if rising else sent.zeros_like()
        self._root = sent.sqrt()
        roots = self._root if now is None or now is sent else now.sqrt()
        sizes = numbers(t.sum() for t in roots)
        self._size = sum(sizes)
        mean = self._size / sent.numel() if sent.numel() else 0.0
        self._sizes = [size + mean * t.numel() for size, t in zip(sizes, roots, strict=True)]
        most = max((t.numel() for t in sent), default=0)
        self._room = {t.dtype: t.new_empty(min(block_of(t.device), most)) for t in sent}

    def rise(self, vector: Vector) -> Rise:
        """Return a reply's rise; the whole is not finite if, and only if, an element is not."""
        return vector.measured(self._rises)

    def _rises(self, tensors: Sequence[Tensor]) -> list[Rise]:
        """Return the rise of each of several replies."""
        count, sizes = len(tensors[0]), list[list[float]]()
        lowest = [math.inf] * count
        for t, floor, root in zip(tensors, self._floor, self._root, strict=True):
            size = [0.0] * count
            flat, floor, root = t.flatten(1), floor.reshape(-1), root.reshape(-1)
            step = block_of(t.device)
            for start in range(0, flat.shape[1], step):
                block = slice(start, start + step)
                piece = flat[:, block]
                # Several replies are small, and need no room that is kept.
                room = self._room[t.dtype][: piece.numel()].view_as(piece) if count == 1 else None
                low = torch.sub(piece, floor[block], out=room).amin(1).tolist()
                if self.rising and all(each >= 0 for each in low):  # no root is below the one sent
                    work = torch.sqrt(piece, out=room).sub_(root[block])
                else:
                    work = torch.clamp_min(piece, 0, out=room).sqrt_().sub_(root[block]).abs_()
                # The clamp hides -inf from the sum, and min() may hide NaN.
                for i, (total, least) in enumerate(zip(work.sum(1).tolist(), low, strict=True)):
                    size[i] += total if math.isfinite(least) else math.nan
                    lowest[i] = min(lowest[i], least)
            sizes.append(size)
        apart = zip(zip(*sizes, strict=True), lowest, strict=True)
        return [self._rise(own, least) for own, least in apart]

    def _rise(self, sizes: Sequence[float], lowest: float) -> Rise:
        tensors = [a / b if b else 0.0 for a, b in zip(sizes, self._sizes, strict=True)]
        return Rise(sum(sizes) / self._size, tensors, lowest < 0)

    def raised(self, vector: Vector) -> Vector:
        """Return the vector with all elements raised to the floor where they are below it."""
        parts = zip(vector, self._floor, strict=True)
        return Vector(torch.maximum(t, floor) for t, floor in parts)

    def pulled(self, vector: Vector, factors: Sequence[float]) -> Vector:
        """Return the vector with the rise of each tensor's root multiplied by its factor."""
        tensors = []
        for t, root, floor, factor in zip(vector, self._root, self._floor, factors, strict=True):
            if factor < 1:
                back = torch.lerp(root, t.sqrt(), factor)
                t = torch.maximum(back * back, floor)
            tensors.append(t)
        return Vector(tensors)
