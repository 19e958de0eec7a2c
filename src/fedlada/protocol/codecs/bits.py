"""A payload: perhaps a seed, a few float32 numbers, such as scales, and rows of codes of few bits.

Codes lie in rows of ``BLOCK``, one, two, four or eight to a byte.  A code of five bits has a byte
of its own: its values are not equally common, and what compresses bytes finds that out best if
none is cut in two.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["BLOCK", "SEED", "opened", "pack", "seed_of", "size_of", "unpack", "write_seed"]

BLOCK = 256
"""Codes per row."""
SEED = 2
"""Numbers of a payload that its seed takes the place of, with its eight bytes."""


def size_of(numbers: int, rows: int, bits: int) -> int:
    """Return the bytes of a payload of so many numbers and rows of codes."""
    return 4 * numbers + rows * BLOCK // _per_byte(bits)


def write_seed(payload: Tensor, seed: int) -> None:
    """Write a seed into the first bytes of a payload."""
    payload[: 4 * SEED] = torch.tensor([seed]).view(torch.uint8)


def seed_of(payload: Tensor) -> int:
    """Return the seed in the first bytes of a payload; of a liar's, any 63 bits will do."""
    return int(payload[: 4 * SEED].clone().view(torch.int64)) & (2**63 - 1)


def opened(payload: Tensor, numbers: int, rows: int, bits: int) -> tuple[Tensor, Tensor]:
    """Return the numbers of a payload, and its packed rows of codes.

    They are views of the payload if it is aligned, as a new tensor is.
    """
    if payload.data_ptr() % 8 or payload.storage_offset() % 8:
        payload = payload.clone()
    head, packed = payload[: 4 * numbers], payload[4 * numbers :]
    return head.view(torch.float32), packed.view(rows, BLOCK // _per_byte(bits))


def pack(codes: Tensor, bits: int, packed: Tensor) -> None:
    """Write rows of codes below ``2**bits`` into their bytes."""
    first, *others = codes.chunk(_per_byte(bits), dim=1)
    packed.copy_(first)
    for i, piece in enumerate(others, 1):
        packed.add_(piece, alpha=2 ** (i * _width(bits)))


def unpack(packed: Tensor, bits: int) -> Tensor:
    """Return the rows of codes that were packed into these bytes; it may be these bytes."""
    width, count = _width(bits), _per_byte(bits)
    if count == 1:
        return packed
    codes = torch.empty(len(packed), BLOCK, dtype=torch.uint8)
    for i, place in enumerate(codes.chunk(count, dim=1)):
        # The shift drops what is below the last piece's bits, and all above them is 0.
        piece = torch.bitwise_right_shift(packed, i * width, out=place) if i else packed
        if i < count - 1:
            torch.bitwise_and(piece, 2**width - 1, out=place)
    return codes


def _width(bits: int) -> int:
    return next(width for width in (1, 2, 4, 8) if bits <= width)


def _per_byte(bits: int) -> int:
    return 8 // _width(bits)
