r"""Integers of a few bits with one scale per block, rounded at random so that no error is biased.

A block of 256 numbers has the scale s, its largest magnitude.  With n = 2^(bits-1) - 1 levels on
either side, a number z is sent as

.. math::
    q = \lfloor n z / s + u \rfloor, \qquad u \text{ uniform on } (0, 1),

and read as q s / n, whose expectation is z; its error is below s / n.  Averaging over clients
makes such errors small, which it does not for a biased code.  u has 12 bits and is never 0, so
that a number which was decoded once is coded as itself, whatever its rounding errors; the bias that
this leaves is at most 2^-13 of s / n.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ...algorithms import Vector
from ..manifest import Layout
from .bits import BLOCK, opened, pack, size_of, unpack
from .codec import Codec
from .rows import chunks, count, from_rows, to_rows

__all__ = ["Block"]

DITHER = 12
"""Bits of the random number that is added before rounding down."""


class Block(Codec):
    """Integers of 2 to 8 bits, with a float32 scale for every 256 of them."""

    def __init__(self, bits: int) -> None:
        self.bits, self.levels = bits, 2 ** (bits - 1) - 1

    def size(self, layout: Layout) -> int:
        rows = count(layout)
        return size_of(rows, rows, self.bits)

    def encode(self, vector: Vector, *, seed: int) -> Tensor:
        rows = to_rows(vector)
        payload = torch.empty(size_of(len(rows), len(rows), self.bits), dtype=torch.uint8)
        scales, parts = opened(payload, len(rows), len(rows), self.bits)
        generator = torch.Generator().manual_seed(seed)
        for own in chunks(len(rows)):
            block, scale = rows[own], scales[own, None]
            torch.amax(block.abs(), 1, keepdim=True, out=scale)
            # Divide first: a subnormal scale has no finite inverse.
            block.div_(torch.where(scale > 0, scale, 1))
            codes = _dither(block, generator).add_(self.levels).add_(block, alpha=self.levels)
            # All are positive, so that cutting off what is behind the point rounds down.
            pack(codes.to(torch.uint8), self.bits, [part[own] for part in parts])
        return payload

    def decode(self, payload: Tensor, layout: Layout) -> Vector:
        rows = torch.empty(count(layout), BLOCK)
        scales, parts = opened(payload, len(rows), len(rows), self.bits)
        for own in chunks(len(rows)):
            codes = unpack([part[own] for part in parts], self.bits)
            # Divide by the levels first, so that the largest code is the scale itself.
            rows[own].copy_(codes).sub_(self.levels).div_(self.levels).mul_(scales[own, None])
        return from_rows(rows, layout)


def _dither(like: Tensor, generator: torch.Generator) -> Tensor:
    """Return random numbers between 0 and 1, without either."""
    words = torch.empty(like.numel() // 4, dtype=torch.int64)
    # The range of all 64-bit integers: without it torch leaves one bit of each at 0.
    words.random_(-(2**63), None, generator=generator)
    whole = words.view(torch.int16).bitwise_and_(2**DITHER - 1)
    return whole.to(like.dtype).add_(0.5).mul_(2.0**-DITHER).view(like.shape)
