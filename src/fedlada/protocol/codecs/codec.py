"""The interface of a codec, which turns one vector into bytes and back.

A codec is one file with one class, and one line in the registry.  It changes the numbers that both
sides *see*: a client trains from the x it decoded, and the server folds the delta it decoded.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from torch import Tensor

from ...algorithms import Vector
from ...errors import FedladaError
from ..manifest import DTYPES, Entry, Layout

__all__ = ["Codec", "MalformedReply", "empty", "split"]


class MalformedReply(FedladaError):
    """The message is not a valid reply; the reason is one of a few fixed phrases."""


class Codec(ABC):
    """Turns a vector into bytes and back; both sides must run the same version."""

    name: ClassVar[str] = ""
    """The name of the codec in a plan; empty for a codec that is listed with its arguments."""
    version: ClassVar[int] = 1
    exact: ClassVar[bool] = False
    """Whether decoding restores every bit; then nothing is encoded in process."""

    @abstractmethod
    def size(self, layout: Layout) -> int:
        """Return the number of bytes that a vector of this layout takes."""

    @abstractmethod
    def encode(self, vector: Vector, *, seed: int) -> Tensor:
        """Return the vector, which is on the CPU, as bytes; ``seed`` decides all randomness."""

    @abstractmethod
    def decode(self, payload: Tensor, layout: Layout) -> Vector:
        """Return the vector that these ``size(layout)`` bytes hold.

        The payload may share memory with a message and must not be written to.
        """

    def fits(self, length: int, layout: Layout) -> bool:
        """Return whether ``length`` bytes can be a vector of this layout."""
        return length == self.size(layout)


def split(data: Tensor, layout: Layout, dtype: torch.dtype | None = None) -> list[Tensor]:
    """Split bytes into tensors of the layout's shapes, in ``dtype`` or in the layout's types."""
    kinds = [dtype or DTYPES[entry.dtype] for entry in layout]
    sizes = [entry.numel * kind.itemsize for entry, kind in zip(layout, kinds, strict=True)]
    pieces = zip(torch.split(data, sizes), layout, kinds, strict=True)
    return [_tensor(piece, entry, kind) for piece, entry, kind in pieces]


def empty() -> Tensor:
    """Return an empty tensor of bytes."""
    return torch.empty(0, dtype=torch.uint8)


def _tensor(piece: Tensor, entry: Entry, dtype: torch.dtype) -> Tensor:
    if piece.data_ptr() % dtype.itemsize or piece.storage_offset() % dtype.itemsize:
        piece = piece.clone()
    return piece.view(dtype).view(entry.shape)
