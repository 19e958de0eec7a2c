"""Zstandard after another codec: it shortens codes of which some are more common than others."""

from __future__ import annotations

from types import ModuleType

import torch
from torch import Tensor

from ...algorithms import Vector
from ...errors import missing_extra
from ..manifest import Layout
from .codec import Codec, MalformedReply, empty

__all__ = ["Zstd"]

LEVEL = 1
"""Higher levels take longer and save nothing on such codes."""


class Zstd(Codec):
    """Compresses the bytes of another codec; the size is checked before decompressing."""

    def __init__(self, inner: Codec) -> None:
        self.inner, self.version = inner, inner.version  # type: ignore[misc]

    def size(self, layout: Layout) -> int:
        """Return the largest number of bytes that a vector of this layout takes."""
        whole = self.inner.size(layout)
        return whole + whole // 128 + 64

    def fits(self, length: int, layout: Layout) -> bool:
        return 0 < length <= self.size(layout)

    def encode(self, vector: Vector, *, seed: int) -> Tensor:
        plain = self.inner.encode(vector, seed=seed).numpy()
        packed = _zstandard().ZstdCompressor(level=LEVEL).compress(plain.data)
        return _bytes(packed)

    def decode(self, payload: Tensor, layout: Layout) -> Vector:
        zstandard, packed = _zstandard(), payload.numpy().data
        try:
            whole = zstandard.get_frame_parameters(packed).content_size
            if whole != self.inner.size(layout):
                raise MalformedReply("wrong length of a vector")
            plain = zstandard.ZstdDecompressor().decompress(
                packed, max_output_size=whole, allow_extra_data=False
            )
        except zstandard.ZstdError as wrong:
            raise MalformedReply("a vector that cannot be read") from wrong
        return self.inner.decode(_bytes(plain), layout)


def _bytes(data: bytes) -> Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else empty()


def _zstandard() -> ModuleType:
    try:
        import zstandard
    except ModuleNotFoundError as error:
        raise missing_extra(error, "this codec", "fedlada[bytes]") from error
    return zstandard
