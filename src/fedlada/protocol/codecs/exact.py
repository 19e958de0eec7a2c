"""The exact codec: the bytes of a vector's tensors end to end, for any dtype."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from ...algorithms import Vector
from ..manifest import Layout
from .codec import Codec, empty, split

__all__ = ["Exact"]


class Exact(Codec):
    """The default codec: it changes nothing, and in process it copies nothing."""

    name = "exact"
    exact: ClassVar[bool] = True

    def size(self, layout: Layout) -> int:
        return sum(entry.nbytes for entry in layout)

    def encode(self, vector: Vector, *, seed: int) -> Tensor:
        flat = [t.detach().contiguous().reshape(-1).view(torch.uint8) for t in vector]
        return torch.cat(flat) if flat else empty()

    def decode(self, payload: Tensor, layout: Layout) -> Vector:
        return Vector(split(payload, layout))
