r"""Integers of a few bits with one scale per block, rounded at random so that no error is biased.

A block of 256 numbers has the scale s, its largest magnitude.  With n = 2^(bits-1) - 1 levels on
either side, a number z is sent as

.. math::
    q = \lfloor n z / s + u \rfloor, \qquad u \text{ uniform on } (0, 1).

``int`` reads it as q s / n.  The expectation is z, the error below s / n, and a number that was
decoded once is coded as itself: u has 12 bits and is never 0, so that rounding errors do not
matter; the bias that this leaves is at most 2^-13 of s / n.

``sub`` reads it as (q + 1/2 - u) s / n, for which the seed of u travels along.  The error is at
most half a level, with half the variance, whatever z is; but what was decoded lies between the
levels, and coding it again adds an error (Roberts 1962, "Picture coding using pseudo-random
noise").  A zero is decoded as a small random value if its block has nonzero values.

Averaging over clients makes such errors small, which it does not for a biased code.  Rows of
numbers are coded a chunk at a time.  A place of chunk k has u = a + k b, modulo 1, with a and b
drawn for that place.  Every u is uniform and any two are nearly independent, which is all that the
mean and the variance of a sum depend on.  This is far cheaper than drawing each u.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from ...algorithms import Vector
from ..manifest import Layout
from .bits import BLOCK, SEED, opened, pack, seed_of, size_of, unpack, write_seed
from .codec import Codec
from .rows import CHUNK, chunks_of, count, rows_of, vector_of

__all__ = ["Block"]

ONE = 2**16
"""The integer that represents 1 in the integer form of u."""
GRAIN = 2**4
"""The step between values of u: far above the rounding errors of float32 below 255 * ``ONE``."""
SMALLEST = 2.0**-149
"""The smallest positive float32."""


class Block(Codec):
    """Integers of 4 to 8 bits, with a float32 scale for every 256 of them; ``sub`` has a seed."""

    version: ClassVar[int] = 4

    def __init__(self, bits: int, *, subtract: bool = False) -> None:
        self.bits, self.levels, self.subtract = bits, 2 ** (bits - 1) - 1, subtract

    def size(self, layout: Layout) -> int:
        return self._bytes(count(layout))

    def encode(self, vector: Vector, *, seed: int) -> Tensor:
        rows = rows_of(vector)
        payload = torch.empty(self._bytes(rows), dtype=torch.uint8)
        if self.subtract:
            write_seed(payload, seed)
        scales, packed = self._open(payload, rows)
        dither = Dither(min(rows, CHUNK), seed)
        spare, whole = torch.empty(2, min(rows, CHUNK), BLOCK).unbind()
        codes, bytes_ = whole.view(torch.int32), torch.empty(whole.shape, dtype=torch.uint8)
        for place, z in chunks_of(vector):
            sums, numbers, scale = spare[: len(z)], codes[: len(z)], scales[place]
            torch.amax(torch.abs(z, out=sums), 1, keepdim=True, out=scale)
            # Divide first: a subnormal scale has no finite inverse.
            shares = torch.div(z, scale.clamp_min(SMALLEST), out=whole[: len(z)])
            sums.copy_(dither.next(len(z)))
            sums.add_(shares, alpha=self.levels * ONE).add_(self.levels * ONE)
            # All are positive, so that truncating rounds down.
            numbers.copy_(sums).bitwise_right_shift_(16)
            pack(bytes_[: len(z)].copy_(numbers), self.bits, packed[place])
        return payload

    def decode(self, payload: Tensor, layout: Layout) -> Vector:
        rows = count(layout)
        scales, packed = self._open(payload, rows)
        dither = Dither(min(rows, CHUNK), seed_of(payload)) if self.subtract else None
        spare = torch.empty(min(rows, CHUNK) if self.subtract else 0, BLOCK)

        def write(place: slice, room: Tensor) -> None:
            room.copy_(unpack(packed[place], self.bits))
            if dither:
                u = spare[: len(room)].copy_(dither.next(len(room)))
                room.sub_(u, alpha=1 / ONE).sub_(self.levels - 0.5).mul_(1 / self.levels)
            else:
                # Dividing is slower, but it decodes the largest code exactly as the scale.
                room.sub_(self.levels).div_(self.levels)
            room.mul_(scales[place])

        return vector_of(layout, write)

    def _bytes(self, rows: int) -> int:
        return size_of(self._head + rows, rows, self.bits)

    def _open(self, payload: Tensor, rows: int) -> tuple[Tensor, Tensor]:
        """Return the scales and the packed codes."""
        numbers, packed = opened(payload, self._head + rows, rows, self.bits)
        return numbers[self._head :, None], packed

    @property
    def _head(self) -> int:
        return SEED if self.subtract else 0


class Dither:
    """Draws u for one chunk after another, as integers strictly between 0 and ``ONE``."""

    def __init__(self, rows: int, seed: int) -> None:
        words = torch.empty(2, rows * BLOCK // 4, dtype=torch.int64)
        # With the range of all 64-bit integers; by default torch leaves one bit of each at 0.
        words.random_(-(2**63), None, generator=torch.Generator().manual_seed(seed))
        drawn = words.view(torch.int16).bitwise_and_(-GRAIN)
        drawn[0] += GRAIN // 2
        self._u, self._step = drawn.view(2, rows, BLOCK).unbind()

    def next(self, rows: int) -> Tensor:
        """Return u for the first rows of the next chunk."""
        # Sums of 16-bit integers are modulo 2**16, as the formula of u requires.
        return self._u.add_(self._step)[:rows].view(torch.uint16)
