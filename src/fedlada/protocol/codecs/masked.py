"""The codec of masked vectors: whole numbers of 32 bits, sent as they are."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from ...algorithms import Vector
from ...errors import require
from ..manifest import Layout
from .codec import Codec, empty, split

__all__ = ["Masked"]


class Masked(Codec):
    """Four bytes per number; a plan with masks has chosen it."""

    name: ClassVar[str] = "masked"

    def size(self, layout: Layout) -> int:
        return sum(4 * entry.numel for entry in layout)

    def encode(self, vector: Vector, *, seed: int) -> Tensor:
        require(
            all(t.dtype == torch.int32 for t in vector),
            "the codec masked is for vectors under masks, and these have none; leave the codec out"
            " and give masks, which choose it",
        )
        return torch.cat([t.reshape(-1) for t in vector]).view(torch.uint8) if vector else empty()

    def decode(self, payload: Tensor, layout: Layout) -> Vector:
        return Vector(split(payload, layout, torch.int32))
