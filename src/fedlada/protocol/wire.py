"""The wire: the only place where vectors are encoded and decoded, and their bytes are counted.

This holds in process, too.  A vector with an exact codec is passed on without a copy and counted
with the bytes that it would take.  Any other vector is encoded and decoded, so that both sides see
the same numbers under every engine.  Codecs work on the CPU, whatever device the vectors are on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from torch import Tensor

from ..algorithms import Vector, Vectors
from ..devices import CPU
from .codecs import Codecs, MalformedReply, Way
from .manifest import Entry, Layout
from .seeds import seed_of

__all__ = ["Parcel", "receive", "send"]


@dataclass(frozen=True)
class Parcel:
    """Vectors encoded for sending."""

    given: Vectors
    """The vectors as the sender has them."""
    codecs: Codecs
    way: Way
    coded: Mapping[str, Tensor]
    """The bytes of the vectors whose codec is not exact."""

    @cached_property
    def vectors(self) -> Vectors:
        """The vectors as the receiver sees them; they are decoded on first use."""
        return Vectors((name, self._seen(name, vector)) for name, vector in self.given.items())

    def _seen(self, name: str, vector: Vector) -> Vector:
        if name not in self.coded:
            return vector
        codec = self.codecs.of(self.way, name)
        return codec.decode(self.coded[name], _layout(vector)).to(vector)

    @property
    def nbytes(self) -> int:
        """Number of bytes that the vectors take when sent."""
        return sum(
            self.coded[name].numel() if name in self.coded else vector.nbytes()
            for name, vector in self.given.items()
        )

    def payload(self, name: str) -> Tensor:
        """Return the bytes of one vector."""
        if name in self.coded:
            return self.coded[name]
        return self.codecs.of(self.way, name).encode(self.given[name].on(CPU), seed=0)


def send(vectors: Vectors, codecs: Codecs, way: Way, *, seed: int) -> Parcel:
    """Encode vectors whose codec is not exact."""
    coded = {
        name: codecs.of(way, name).encode(vector.on(CPU), seed=seed_of(seed, name))
        for name, vector in vectors.items()
        if not codecs.of(way, name).exact
    }
    return Parcel(vectors, codecs, way, coded)


def receive(name: str, payload: Tensor, layout: Layout, codecs: Codecs, way: Way) -> Vector:
    """Decode one vector; its size is checked before memory is allocated."""
    codec = codecs.of(way, name)
    if not codec.fits(payload.numel(), layout):
        raise MalformedReply("wrong length of a vector")
    return codec.decode(payload, layout)


def _layout(vector: Vector) -> Layout:
    return [Entry("", str(t.dtype), list(t.shape)) for t in vector]
