r"""Fixed point: whole multiples of one public step, so that sums have no rounding error at all.

.. math:: q = \mathrm{round}(x / s), \qquad s = 2^{-24}

A vector is at most 1 long, and so is what is decoded: :math:`|q| \le 2^{24}`, which float32 holds
exactly.  A sum is an integer times the step.  It is the same in any order and any tree, in float64
as well as modulo :math:`2^{32}`, where 127 vectors fit.  Whoever sends divides by a public length
first, such as the clip of a private run.  A vector that is longer than 1 is an error where it is
encoded: nothing is cut in silence.
"""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor

from ...algorithms import Vector
from ...devices import BLOCK
from ...errors import require
from ..manifest import DTYPES, Layout
from .codec import Codec, empty, split

__all__ = ["STEP", "Fixed", "length_of", "longest", "uncut"]

STEP = 2.0**-24
"""The number that a whole number of 1 stands for."""

ROUNDING = 2.0**-20
"""Room for the rounding of float32 numbers, relative to the length."""


class Fixed(Codec):
    """Four bytes per number; the error of a number is at most half a step."""

    name: ClassVar[str] = "fixed"

    def size(self, layout: Layout) -> int:
        return sum(4 * entry.numel for entry in layout)

    def encode(self, vector: Vector, *, seed: int) -> Tensor:
        kinds = {str(t.dtype).removeprefix("torch.") for t in vector} - {"float32", "float64"}
        require(
            not kinds,
            f"the codec fixed has no room in {', '.join(sorted(kinds))} for its 25 bits; keep the"
            " parameters in float32 and use autocast",
        )
        length = length_of(vector)
        require(
            length <= 1 + ROUNDING,
            f"a vector of length {length:.4g} is beyond the scale of the codec fixed, whose vectors"
            " are at most 1 long; divide by a public length first, or choose another codec",
        )
        # A vector near the limit is made shorter, so that rounding cannot lengthen it beyond 1.
        factor = min(1.0, longest(vector.numel()) / length) / STEP if length else 1.0
        whole = [_whole(t.detach(), factor).reshape(-1) for t in vector]
        return torch.cat(whole).view(torch.uint8) if whole else empty()

    def decode(self, payload: Tensor, layout: Layout) -> Vector:
        whole = split(payload, layout, torch.int32)
        kinds = (DTYPES[entry.dtype] for entry in layout)
        return Vector(t.to(kind).mul_(STEP) for t, kind in zip(whole, kinds, strict=True))


def length_of(vector: Vector) -> float:
    """Return the Euclidean norm, summed in float64 block by block: float32 sums may be 1e-3 off."""
    blocks = (block for t in vector for block in torch.split(t.detach().reshape(-1), BLOCK))
    return math.hypot(*(float(torch.linalg.vector_norm(b, dtype=torch.float64)) for b in blocks))


def uncut(length: float, count: int) -> bool:
    """Return whether a decoded vector was not cut: a cut one has the greatest length there is."""
    return length < longest(count) - math.sqrt(count) * STEP / 2


def longest(count: int) -> float:
    """Return the length up to which a vector of so many numbers is sent as it is."""
    return 1 - math.sqrt(count) * STEP / 2 - ROUNDING


def _whole(t: Tensor, factor: float) -> Tensor:
    """Return the multiples of the step, rounded to nearest, in the order of their indices."""
    whole = torch.empty(t.shape, dtype=torch.int32)
    for part, out in zip(
        torch.split(t.reshape(-1), BLOCK), torch.split(whole.view(-1), BLOCK), strict=True
    ):
        out.copy_(torch.round(part * factor))
    return whole
