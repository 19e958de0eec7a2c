"""Tensors in memory that a process shares with the processes that it forks.

The memory belongs to no file system, so a small ``/dev/shm``, as in containers, does not matter,
and the system takes it back when the last process that has it ends, however it ends.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["Place", "SharedTensors"]

ALIGNED = 64


class Place(NamedTuple):
    """Where a tensor lies, and how it is to be seen."""

    start: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype

    @property
    def end(self) -> int:
        """The first byte after the tensor."""
        return self.start + torch.Size(self.shape).numel() * self.dtype.itemsize


class SharedTensors:
    """A block of memory with tensors in it; make it before forking.

    Only one process may write at a time, and only while no other reads.
    """

    def __init__(self) -> None:
        self._file = os.memfd_create("fedlada")
        self._map: mmap.mmap | None = None

    def write(self, tensors: Iterable[Tensor]) -> list[Place]:
        """Copy tensors into the block, over all that it had, and return their places."""
        tensors = list(tensors)
        places, end = list[Place](), 0
        for t in tensors:
            start = -(-end // ALIGNED) * ALIGNED
            stride = torch.empty_like(t, device="meta").stride()  # dense, even if t is not
            places.append(Place(start, tuple(t.shape), stride, t.dtype))
            end = places[-1].end
        if end > os.fstat(self._file).st_size:
            os.ftruncate(self._file, end)
        with torch.no_grad():
            for t, view in zip(tensors, self.read(places), strict=True):
                view.copy_(t)
        return places

    def read(self, places: Sequence[Place]) -> list[Tensor]:
        """Return the tensors at these places, which share the block's memory."""
        end = max((place.end for place in places), default=0)
        if end and (self._map is None or len(self._map) < end):
            self._map = mmap.mmap(self._file, 0)
        return [self._view(place) for place in places]

    def close(self) -> None:
        """Give the memory back once no tensor refers to it."""
        self._map = None
        os.close(self._file)

    def _view(self, place: Place) -> Tensor:
        start, shape, stride, dtype = place
        count = torch.Size(shape).numel()
        if not count or self._map is None:
            return torch.empty_strided(shape, stride, dtype=dtype)
        flat = torch.frombuffer(self._map, dtype=dtype, count=count, offset=start)
        return flat.as_strided(shape, stride)
