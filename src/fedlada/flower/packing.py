"""A vector's bytes as one of Flower's arrays, and back, whatever somebody else put in its place.

Flower makes two objects of every array and one request of every object, so each vector is one
array of unsigned bytes: any dtype and any codec travels, also what numpy does not know.

Flower wraps an array's bytes in the .npy format.  For a payload of known size there is one header
it can have, so the header is compared and never parsed: what it claims allocates nothing, and
nothing in it is evaluated or unpickled.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import torch
from flwr.app import Array
from torch import Tensor

from ..protocol.codecs import MalformedReply

__all__ = ["opened", "packed"]

MAGIC = b"\x93NUMPY\x01\x00"
"""How .npy version 1.0 begins; two bytes with the header's length follow."""
LONGEST_HEADER = 128
"""Bytes of it at most; numpy writes 118."""

with warnings.catch_warnings():
    # Torch warns, once in a process, that bytes are not writable; nothing here writes to them.
    warnings.simplefilter("ignore")
    torch.frombuffer(b"\0", dtype=torch.uint8)


def packed(payload: Tensor) -> Array:
    """Return bytes as an array."""
    data: np.ndarray[Any, np.dtype[np.uint8]] = payload.numpy()
    return Array(data)


def opened(array: Array, *, copy: bool) -> Tensor:
    """Return the bytes of an array; what they mean is for the wire to say.

    Without ``copy`` they share the array's memory, which must then never be written to.
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
    if copy:  # by numpy, which asks for huge pages: quicker than torch's clone
        return torch.from_numpy(np.frombuffer(data, dtype=np.uint8, offset=start).copy())
    return torch.frombuffer(data, dtype=torch.uint8, offset=start)
