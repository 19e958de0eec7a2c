"""Converts a vector's bytes to a Flower array and back; the array may come from an attacker.

Flower sends every array as two objects, each with its own request, so each vector is one array of
unsigned bytes.  This works for any codec and dtype, also for dtypes that numpy lacks.

Flower wraps an array's bytes in the .npy format.  For a payload of known size only one header is
valid, so the header is compared and never parsed: it cannot cause an allocation, and nothing in
it is evaluated or unpickled.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import torch
from flwr.app import Array
from torch import Tensor

from ...protocol.codecs import MalformedReply

__all__ = ["opened", "packed"]

MAGIC = b"\x93NUMPY\x01\x00"
"""The first bytes of .npy version 1.0; two bytes with the header's length follow."""
LONGEST_HEADER = 128
"""Largest number of bytes in the header; numpy writes 118."""

with warnings.catch_warnings():
    # Torch warns once per process that bytes are not writable; nothing here writes to them.
    warnings.simplefilter("ignore")
    torch.frombuffer(b"\0", dtype=torch.uint8)


def packed(payload: Tensor) -> Array:
    """Return bytes as a Flower array."""
    data: np.ndarray[Any, np.dtype[np.uint8]] = payload.numpy()
    return Array(data)


def opened(array: Array, *, copy: bool) -> Tensor:
    """Return the bytes of an array without decoding them.

    Without ``copy`` they share the array's memory and must never be written to.
    """
    data = array.data
    if (array.dtype, array.stype) != ("uint8", "numpy.ndarray") or len(array.shape) != 1:
        raise MalformedReply("wrong type or shape of a vector")
    (size,) = array.shape
    if type(size) is not int or size < 0:
        raise MalformedReply("wrong type or shape of a vector")
    if type(data) is not bytes or not size <= len(data) - len(MAGIC) - 2 <= size + LONGEST_HEADER:
        raise MalformedReply("wrong length of a vector")
    start = len(data) - size
    length, header = data[len(MAGIC) : len(MAGIC) + 2], data[len(MAGIC) + 2 : start]
    only = f"{{'descr': '|u1', 'fortran_order': False, 'shape': ({size},), }}".encode()
    if (
        not data.startswith(MAGIC)
        or int.from_bytes(length, "little") != len(header)
        or header.rstrip() != only
    ):
        raise MalformedReply("wrong header of a vector")
    if not size:
        return torch.empty(0, dtype=torch.uint8)
    if copy:  # numpy asks for huge pages, so it is faster than torch's clone
        return torch.from_numpy(np.frombuffer(data, dtype=np.uint8, offset=start).copy())
    return torch.frombuffer(data, dtype=torch.uint8, offset=start)
