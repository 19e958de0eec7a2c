"""A payload: a few float32 numbers, such as scales, and rows of codes of a few bits each.

Codes lie in rows of ``BLOCK``.  A width that is no power of two is split into such: six bits are
the low four of every code and then the high two of every code.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["BLOCK", "opened", "pack", "size_of", "unpack"]

BLOCK = 256
"""Codes per row."""

WIDTHS = (8, 4, 2, 1)


def size_of(numbers: int, rows: int, bits: int) -> int:
    """Return the bytes of a payload of so many numbers and rows of codes."""
    return 4 * numbers + rows * BLOCK * bits // 8


def opened(payload: Tensor, numbers: int, rows: int, bits: int) -> tuple[Tensor, list[Tensor]]:
    """Return the numbers of a payload, and its packed codes in one part for each width.

    They are views of the payload if it is aligned, as a new tensor is.
    """
    if payload.data_ptr() % 8 or payload.storage_offset() % 8:
        payload = payload.clone()
    widths = [BLOCK * width // 8 for width in _widths(bits)]
    head, *parts = torch.split(payload, [4 * numbers, *(rows * width for width in widths)])
    views = [part.view(rows, width) for part, width in zip(parts, widths, strict=True)]
    return head.view(torch.float32), views


def pack(codes: Tensor, bits: int, parts: list[Tensor]) -> None:
    """Write rows of codes below ``2**bits`` into their parts."""
    done = 0
    for width, part in zip(_widths(bits), parts, strict=True):
        own = codes >> done if done else codes
        own = own if done + width == bits else own & (2**width - 1)
        first, *others = own.chunk(8 // width, dim=1)
        part.copy_(first)
        for i, piece in enumerate(others, 1):
            part.add_(piece, alpha=2 ** (i * width))
        done += width


def unpack(parts: list[Tensor], bits: int) -> Tensor:
    """Return the rows of codes that were packed into these parts; it may be a part itself."""
    if bits == 8:
        return parts[0]
    codes, done = torch.empty(len(parts[0]), BLOCK, dtype=torch.uint8), 0
    for width, part in zip(_widths(bits), parts, strict=True):
        for i, place in enumerate(codes.chunk(8 // width, dim=1)):
            target = torch.empty_like(part) if done else place
            # The shift drops what is below the last piece's bits, and all above them is 0.
            piece = torch.bitwise_right_shift(part, i * width, out=target) if i else part
            if (i + 1) * width < 8:
                piece = torch.bitwise_and(piece, 2**width - 1, out=target)
            if done:
                place.add_(piece, alpha=2**done)
        done += width
    return codes


def _widths(bits: int) -> list[int]:
    return [width for width in WIDTHS if bits & width]
