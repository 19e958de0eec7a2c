"""Random numbers for privacy, from the system's entropy.

Torch's generator is of no use here: a client trains with a seed that the server has chosen, so the
server could compute the noise and subtract it.
"""

from __future__ import annotations

import math
import os

import torch
from torch import Tensor

__all__ = ["normal", "uniform"]


def uniform(count: int) -> Tensor:
    """Return numbers from the open interval from 0 to 1, each one of 2**53."""
    words = torch.frombuffer(bytearray(os.urandom(8 * count)), dtype=torch.int64)
    return ((words & (2**53 - 1)).double() + 0.5) * 2.0**-53


def normal(like: Tensor) -> Tensor:
    """Return standard normal numbers in the shape, type and place of ``like`` (Box and Muller)."""
    pairs = -(-like.numel() // 2)
    if not pairs:
        return torch.zeros_like(like)
    radius, angle = uniform(2 * pairs).view(2, pairs)
    radius, angle = (-2 * radius.log()).sqrt(), 2 * math.pi * angle
    numbers = torch.cat([radius * angle.cos(), radius * angle.sin()])
    return numbers[: like.numel()].view(like.shape).to(like.dtype).to(like.device)
