"""A payload: a few float32 numbers, such as scales, and rows of codes of a few bits each.

Codes lie in rows of ``BLOCK``, one, two, four or eight to a byte.  A code of five bits has a byte
of its own: its values are not equally common, and what compresses bytes finds that out best if
none is cut in two.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["BLOCK", "opened", "pack", "size_of", "unpack"]

BLOCK = 256
"""Codes per row."""


def size_of(numbers: int, rows: int, bits: int) -> int:
    """Return the bytes of a payload of so many numbers and rows of codes."""
    return 4 * numbers + rows * BLOCK // _per_byte(bits)


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
