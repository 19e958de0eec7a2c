"""The wire: the only place where vectors are encoded and decoded and their bytes counted.

Vectors pass through here in process, too.  A vector with an exact codec is passed on without a
copy and counted as the bytes it would take.  Any other vector is encoded and decoded, so that both
sides see the same numbers under every engine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from ..algorithms import Vector, Vectors
from .codecs import Codecs, MalformedReply, Way
from .manifest import Entry, Layout
from .seeds import seed_of

__all__ = ["Parcel", "receive", "send"]


@dataclass(frozen=True)
class Parcel:
    """Vectors encoded for sending."""

    vectors: Vectors
    """The vectors as the receiver sees them."""
    codecs: Codecs
    way: Way
    coded: Mapping[str, Tensor]
    """The bytes of the vectors whose codec is not exact."""

    @property
    def nbytes(self) -> int:
        """Number of bytes that the vectors take when sent."""
        return sum(
            self.coded[name].numel() if name in self.coded else vector.nbytes()
            for name, vector in self.vectors.items()
        )

    def payload(self, name: str) -> Tensor:
        """Return the bytes of one vector."""
        if name in self.coded:
            return self.coded[name]
        return self.codecs.of(self.way, name).encode(self.vectors[name], seed=0)


def send(vectors: Vectors, codecs: Codecs, way: Way, *, seed: int) -> Parcel:
    """Encode vectors whose codec is not exact, and decode them as the receiver will."""
    seen, coded = Vectors(), dict[str, Tensor]()
    for name, vector in vectors.items():
        codec = codecs.of(way, name)
        if codec.exact:
            seen[name] = vector
        else:
            coded[name] = codec.encode(vector, seed=seed_of(seed, name))
            seen[name] = codec.decode(coded[name], _layout(vector)).to(vector)
    return Parcel(seen, codecs, way, coded)


def receive(name: str, payload: Tensor, layout: Layout, codecs: Codecs, way: Way) -> Vector:
    """Decode one vector; its size is checked before memory is allocated."""
    codec = codecs.of(way, name)
    if not codec.fits(payload.numel(), layout):
        raise MalformedReply("wrong length of a vector")
    return codec.decode(payload, layout)


def _layout(vector: Vector) -> Layout:
    return [Entry("", str(t.dtype), list(t.shape)) for t in vector]
