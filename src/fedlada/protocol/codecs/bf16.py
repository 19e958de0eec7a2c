"""bfloat16: the first half of each float32 number, rounded to nearest; an error of 1 in 256."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from ...algorithms import Vector
from ...devices import BLOCK
from ..manifest import DTYPES, Layout
from .codec import Codec

__all__ = ["BFloat16"]


class BFloat16(Codec):
    """Two bytes per number: the low ones of all, then the high ones, which compress well."""

    def size(self, layout: Layout) -> int:
        return sum(2 * entry.numel for entry in layout)

    def encode(self, vector: Vector, *, seed: int) -> Tensor:
        payload = torch.empty(2, vector.numel(), dtype=torch.uint8)
        places = torch.split(payload, [p.numel() for p in _pieces(vector)], dim=1)
        for piece, (low, high) in zip(_pieces(vector), places, strict=True):
            words = piece.to(torch.bfloat16).view(torch.int16)
            low.copy_(words)
            high.copy_(words >> 8)
        return payload.view(-1)

    def decode(self, payload: Tensor, layout: Layout) -> Vector:
        vector = Vector(torch.empty(entry.shape, dtype=DTYPES[entry.dtype]) for entry in layout)
        places = torch.split(payload.view(2, -1), [p.numel() for p in _pieces(vector)], dim=1)
        for piece, (low, high) in zip(_pieces(vector), places, strict=True):
            words = high.to(torch.int16).bitwise_left_shift_(8).bitwise_or_(low)
            piece.copy_(words.view(torch.bfloat16))
        return vector


def _pieces(vector: Vector) -> Iterator[Tensor]:
    """Yield the numbers of a vector, few enough at a time to stay in the processor's cache."""
    for t in vector:
        if t.numel():
            yield from torch.split(t.detach().reshape(-1), BLOCK)
