r"""EDEN: two bits per number after a random rotation, with a scale that removes the bias.

A row of 1,024 numbers is multiplied by random signs and by a Hadamard matrix.  The result z looks
like normal noise of one size, so each number is sent as the nearest of the four centres that are
best for a normal distribution.  With c the centres chosen, the row is read as the inverse rotation
of :math:`c\,\|z\|^2 / \langle z, c\rangle`, whose expectation over the signs is the row.

Vargaftik et al. 2022, "EDEN: Communication-Efficient and Robust Distributed Mean Estimation".
Deviations: rows of 1,024 are rotated by themselves, and the seed of the signs travels along.
"""

from __future__ import annotations

from functools import cache
from typing import ClassVar

import torch
from torch import Tensor

from ...algorithms import Vector
from ..manifest import Layout
from .bits import BLOCK, SEED, opened, pack, seed_of, size_of, unpack, write_seed
from .codec import Codec
from .rows import chunks_of, count, rows_of, vector_of

__all__ = ["Eden"]

SIDE = 32
WIDTH = SIDE * SIDE
"""Numbers in a row; the rotation of a row is two products with matrices of ``SIDE``."""

BITS = 2
CENTRES = (-1.5104176087, -0.4527800398, 0.4527800398, 1.5104176087)
"""The centres of the Lloyd-Max quantiser of a standard normal."""


class Eden(Codec):
    """Two bits per number, a float32 scale for every 1,024, and a seed."""

    name = "eden2"
    version: ClassVar[int] = 2

    def __init__(self) -> None:
        self._centres = torch.tensor(CENTRES)
        self._edges = (self._centres[1:] + self._centres[:-1]) / 2

    def size(self, layout: Layout) -> int:
        return self._bytes(_wide(count(layout)))

    def encode(self, vector: Vector, *, seed: int) -> Tensor:
        rows = _wide(rows_of(vector))
        payload = torch.empty(self._bytes(rows), dtype=torch.uint8)
        scales, packed = self._open(payload, rows)
        write_seed(payload, seed)
        signs = torch.Generator().manual_seed(seed)
        for narrow, block in chunks_of(vector):
            place = _widely(narrow)
            z = _rotated(_flipped(_widened(block), signs))
            norm = torch.linalg.vector_norm(z, dim=1, keepdim=True)
            codes = torch.zeros(z.shape, dtype=torch.uint8)
            for edge in self._edges.tolist():
                codes += (z > norm * (edge / SIDE)).view(torch.uint8)
            chosen = self._chosen(codes)
            scale = norm / (z.mul_(chosen).sum(1, keepdim=True) / norm)
            scales[place] = torch.where(norm == 0, 0, scale)
            pack(codes.view(-1, BLOCK), BITS, _four(packed, place))
        return payload

    def decode(self, payload: Tensor, layout: Layout) -> Vector:
        scales, packed = self._open(payload, _wide(count(layout)))
        signs = torch.Generator().manual_seed(seed_of(payload))

        def write(narrow: slice, room: Tensor) -> None:
            place = _widely(narrow)
            codes = unpack(_four(packed, place), BITS)
            wide = _flipped(_rotated(self._chosen(codes).mul_(scales[place])), signs)
            room.copy_(wide.view(-1, BLOCK)[: len(room)])

        return vector_of(layout, write)

    def _chosen(self, codes: Tensor) -> Tensor:
        """Return the centres of these codes, in wide rows."""
        return self._centres.index_select(0, codes.view(-1).int()).view(-1, WIDTH)

    def _bytes(self, rows: int) -> int:
        return size_of(SEED + rows, 4 * rows, BITS)

    def _open(self, payload: Tensor, rows: int) -> tuple[Tensor, Tensor]:
        """Return the scales and the packed codes."""
        numbers, packed = opened(payload, SEED + rows, 4 * rows, BITS)
        return numbers[SEED:, None], packed


def _wide(narrow: int) -> int:
    return -(-narrow * BLOCK // WIDTH)


def _widely(narrow: slice) -> slice:
    """Return the wide rows that contain these narrow rows; the first narrow row begins one."""
    return slice(narrow.start * BLOCK // WIDTH, _wide(narrow.stop))


def _widened(narrow: Tensor) -> Tensor:
    """Return a copy of narrow rows as wide rows, padded with 0."""
    missing = -len(narrow) % (WIDTH // BLOCK)
    return torch.cat([narrow, narrow.new_zeros(missing, BLOCK)]).view(-1, WIDTH)


def _four(packed: Tensor, rows: slice) -> Tensor:
    """Return the four narrow rows of each of these rows."""
    return packed[4 * rows.start : 4 * rows.stop]


def _flipped(rows: Tensor, generator: torch.Generator) -> Tensor:
    """Give each number a random sign, in place."""
    words = torch.empty(rows.numel() // 8, dtype=torch.int64)
    words.random_(-(2**63), None, generator=generator)
    # The lowest bit of each byte becomes the sign, which is the highest bit of a float32.
    signs = words.view(torch.int8).to(torch.int32).bitwise_left_shift_(31)
    rows.view(torch.int32).bitwise_xor_(signs.view(rows.shape))
    return rows


def _rotated(rows: Tensor) -> Tensor:
    """Return each row times the Hadamard matrix of its width, which is its place inverse."""
    half = _hadamard()
    return (half @ (rows.view(-1, SIDE) @ (half / SIDE)).view(-1, SIDE, SIDE)).reshape(-1, WIDTH)


@cache
def _hadamard() -> Tensor:
    matrix = torch.ones(1, 1)
    while len(matrix) < SIDE:
        top = torch.cat([matrix, matrix], 1)
        matrix = torch.cat([top, torch.cat([matrix, -matrix], 1)])
    return matrix
