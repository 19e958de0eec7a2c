"""bfloat16: the first half of each float32 number, rounded to nearest; an error of 1 in 256."""

from __future__ import annotations

import torch
from torch import Tensor

from ...algorithms import Vector
from ..manifest import DTYPES, Layout
from .codec import Codec, empty

__all__ = ["BFloat16"]


class BFloat16(Codec):
    """Two bytes per number, the high ones first: they repeat, and compress well."""

    def size(self, layout: Layout) -> int:
        return sum(2 * entry.numel for entry in layout)

    def encode(self, vector: Vector, *, seed: int) -> Tensor:
        short = [t.detach().reshape(-1).to(torch.bfloat16) for t in vector]
        return torch.cat(short).view(torch.uint8).view(-1, 2).t().reshape(-1) if short else empty()

    def decode(self, payload: Tensor, layout: Layout) -> Vector:
        numbers = payload.view(2, -1).t().reshape(-1).view(torch.bfloat16)
        pieces = torch.split(numbers, [entry.numel for entry in layout])
        return Vector(
            piece.to(DTYPES[entry.dtype], copy=True).view(entry.shape)
            for piece, entry in zip(pieces, layout, strict=True)
        )
