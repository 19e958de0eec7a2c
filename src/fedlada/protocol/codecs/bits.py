"""Payloads: an optional seed, a few float32 numbers, such as scales, and rows of codes of few bits.

A row has ``BLOCK`` codes, and a byte holds one, two or four of them.  A code of five or six bits
takes a whole byte: some codes are more common than others, and a compressor of bytes uses that best
if no code is split over two bytes.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["BLOCK", "SEED", "opened", "pack", "seed_of", "size_of", "unpack", "write_seed"]

BLOCK = 256
"""Codes per row."""
SEED = 2
"""A seed takes eight bytes, as many as this number of float32 numbers."""


def size_of(numbers: int, rows: int, bits: int) -> int:
    """Return the number of bytes of a payload with these numbers and rows of codes."""
    return 4 * numbers + rows * BLOCK // _per_byte(bits)


def write_seed(payload: Tensor, seed: int) -> None:
    """Write a seed into the first bytes of a payload."""
    payload[: 4 * SEED] = torch.tensor([seed]).view(torch.uint8)


def seed_of(payload: Tensor) -> int:
    """Return the seed in the first bytes of a payload.

    In a malicious payload it may be any 63-bit number, which is harmless.
    """
    return int(payload[: 4 * SEED].clone().view(torch.int64)) & (2**63 - 1)


def opened(payload: Tensor, numbers: int, rows: int, bits: int) -> tuple[Tensor, Tensor]:
    """Return the numbers of a payload, and its packed rows of codes.

    Both are views of the payload if its memory is aligned, as that of a new tensor is.
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
    """Return the rows of codes that were packed into these bytes; a view if a code has a byte."""
    width, count = _width(bits), _per_byte(bits)
    if count == 1:
        return packed
    codes = torch.empty(len(packed), BLOCK, dtype=torch.uint8)
    for i, place in enumerate(codes.chunk(count, dim=1)):
        # The shift removes the bits below this piece; only the last piece has none above it.
        piece = torch.bitwise_right_shift(packed, i * width, out=place) if i else packed
        if i < count - 1:
            torch.bitwise_and(piece, 2**width - 1, out=place)
    return codes


def _width(bits: int) -> int:
    return next(width for width in (2, 4, 8) if bits <= width)


def _per_byte(bits: int) -> int:
    return 8 // _width(bits)
