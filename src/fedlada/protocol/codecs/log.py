"""Logarithmic codes for positive numbers, such as second moments, which span many decades.

A block of 256 numbers is coded in equal steps of the logarithm between its smallest and its
largest.  The relative error is at most half a step: with eight bits 5 % if a block spans twelve
decades, and less if it spans fewer.  Rounding is to nearest, and what is decoded is positive.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ...algorithms import Vector
from ..manifest import Layout
from .bits import opened, pack, size_of, unpack
from .codec import Codec
from .rows import chunks_of, count, rows_of, vector_of

__all__ = ["Log"]

TINY = torch.finfo(torch.float32).tiny


class Log(Codec):
    """Codes of ``bits`` bits with two float32 bounds for every 256; numbers must be positive."""

    def __init__(self, bits: int) -> None:
        self.bits, self.top = bits, 2**bits - 1

    def size(self, layout: Layout) -> int:
        rows = count(layout)
        return size_of(2 * rows, rows, self.bits)

    def encode(self, vector: Vector, *, seed: int) -> Tensor:
        rows = rows_of(vector)
        payload = torch.empty(size_of(2 * rows, rows, self.bits), dtype=torch.uint8)
        bounds, packed = opened(payload, 2 * rows, rows, self.bits)
        for own, block in chunks_of(vector):
            # Padding is 0 and takes the block's largest, which changes neither bound.
            largest = block.amax(1, keepdim=True)
            logs = torch.where(block == 0, largest, block).clamp_min_(TINY).log_()
            low, high = logs.amin(1, keepdim=True), logs.amax(1, keepdim=True)
            bounds.view(-1, 2)[own] = torch.cat([low, high], 1)
            step = self._step(low, high)
            codes = logs.sub_(low).div_(step).round_().clamp_(0, self.top).to(torch.uint8)
            pack(codes, self.bits, packed[own])
        return payload

    def decode(self, payload: Tensor, layout: Layout) -> Vector:
        rows = count(layout)
        bounds, packed = opened(payload, 2 * rows, rows, self.bits)

        def write(own: slice, room: Tensor) -> None:
            low, high = bounds.view(-1, 2)[own].chunk(2, dim=1)
            room.copy_(unpack(packed[own], self.bits))
            room.mul_(self._step(low, high)).add_(low).exp_()

        return vector_of(layout, write)

    def _step(self, low: Tensor, high: Tensor) -> Tensor:
        step = (high - low) / self.top
        return torch.where(step > 0, step, 1)
