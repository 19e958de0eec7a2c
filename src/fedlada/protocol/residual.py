"""Residuals: if deltas are coded, a client sends only what its own gradients added to its delta.

The rest is the delta of a client with zero gradients (``Part.known``): with amending,
K steps along g_a.  The server holds g_a itself, and the client holds a coded copy.  If a client
sent its whole delta, the error of that copy would come back in every delta and be added to x and to
the next g_a.  So the client subtracts the zero-gradient delta along what it decoded, and the server
adds the one along what it holds.  An exact delta is sent whole.
"""

from __future__ import annotations

from ..algorithms import Algorithm, Round, Vector, Vectors
from .codecs import Codecs

__all__ = ["base", "residual"]


def base(algorithm: Algorithm, codecs: Codecs, down: Vectors) -> Vector | None:
    """Return what is subtracted from a delta per unit of lr_sum; None if it is sent whole."""
    if codecs.of("up", "delta").exact:
        return None
    return algorithm.part.known(down, Round(steps=1, lr_sum=1.0)).get("delta")


def residual(
    algorithm: Algorithm, codecs: Codecs, down: Vectors, delta: Vector, lr_sum: float
) -> Vector:
    """Return what a client sends of its delta, given the ``down`` vectors that it decoded."""
    rest = base(algorithm, codecs, down)
    return delta if rest is None else delta.add(rest.to(delta), alpha=-algorithm.span(lr_sum))
