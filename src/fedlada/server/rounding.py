"""Tells whether a sum was exact, by the flag that a processor raises when it rounds.

A float64 sum of a few float32 numbers is nearly always exact.  IEEE 754 has a flag for that,
*inexact*, which stays up once any element of any operation was rounded.  To read it costs nothing;
to compute the rounding error of every element takes six more operations.

The flag belongs to a thread, and torch does not promise that its own work is done in the caller's.
So the flag is tried out first, in every part of a block: one that misses a rounding, or that is
raised by an exact sum, is never used, and no sum counts as exact.
"""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from ..algorithms.vectors import BLOCK

__all__ = ["known_exact"]

FE_INEXACT = {"x86_64": 0x20, "aarch64": 0x10, "arm64": 0x10}.get(platform.machine(), 0)
"""The flag's number in fenv.h on this processor; 0 if unknown."""

PARTS = 64
"""The flag is tried out in so many parts of a block."""


def known_exact(operation: Callable[[], object], device: torch.device) -> bool:
    """Return True if an operation on blocks of a device's memory was run and rounded no element.

    It is not run where that could not be seen.
    """
    works = device.type == "cpu" and _works(torch.get_num_threads())
    return works and not _rounds(operation)


def _rounds(operation: Callable[[], object]) -> bool:
    """Run an operation and return whether it raised the flag."""
    library = _library()
    library.feclearexcept(FE_INEXACT)
    operation()
    return bool(library.fetestexcept(FE_INEXACT))


@cache
def _works(threads: int) -> bool:
    """Try the flag out with so many threads: it must see one rounding anywhere, and no other."""
    if not FE_INEXACT or not hasattr(_library(), "fetestexcept"):
        return False
    a, b = torch.ones(2, BLOCK, dtype=torch.float64)
    out = torch.empty_like(a)
    if _rounds(lambda: torch.add(a, b, out=out)):
        return False
    for i in [*range(0, BLOCK, BLOCK // PARTS), BLOCK - 1]:
        b[i] = 2.0**-60  # vanishes beside 1
        if not _rounds(lambda: torch.add(a, b, out=out)):
            return False
        b[i] = 1
    return True


@cache
def _library() -> Any:
    """Return the C library that this process has loaded; None on Windows."""
    return None if platform.system() == "Windows" else ctypes.PyDLL(None)
