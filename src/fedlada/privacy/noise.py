"""Random numbers for privacy, from the system's entropy or from a secret.

Torch's generator is of no use here: a client trains with a seed that the server has chosen, so the
server could compute the noise and subtract it.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Secret", "Source", "normal", "uniform"]

Source = Callable[[int], bytes]
"""Returns the given number of random bytes, others at every call."""


@dataclass(frozen=True)
class Secret:
    """Makes random bytes that nobody can tell from others without it (SHAKE-256)."""

    key: bytes

    @classmethod
    def new(cls) -> Secret:
        """Return a secret from the system's entropy."""
        return cls(os.urandom(32))

    def __repr__(self) -> str:
        return "Secret(...)"

    def source(self, *label: int | str) -> Source:
        """Return the source of a label; the same label has the same bytes."""
        calls = 0

        def draw(count: int) -> bytes:
            nonlocal calls
            calls += 1
            return hashlib.shake_256(self.key + repr((*label, calls)).encode()).digest(count)

        return draw


def uniform(count: int, source: Source = os.urandom) -> Tensor:
    """Return numbers from the open interval from 0 to 1, each one of 2**53."""
    words = torch.frombuffer(bytearray(source(8 * count)), dtype=torch.int64)
    return ((words & (2**53 - 1)).double() + 0.5) * 2.0**-53


def normal(like: Tensor, source: Source = os.urandom) -> Tensor:
    """Return standard normal numbers in the shape, type and place of ``like`` (Box and Muller)."""
    pairs = -(-like.numel() // 2)
    if not pairs:
        return torch.zeros_like(like)
    radius, angle = uniform(2 * pairs, source).view(2, pairs)
    radius, angle = (-2 * radius.log()).sqrt(), 2 * math.pi * angle
    numbers = torch.cat([radius * angle.cos(), radius * angle.sin()])
    return numbers[: like.numel()].view(like.shape).to(like.dtype).to(like.device)
