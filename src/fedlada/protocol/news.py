"""News: where deltas are coded, a client sends what its delta has beyond coasting.

Coasting is the delta of a client without any gradient (``Part.coasting``): with amending, K steps
along g_a.  The server holds g_a itself, the client a coded copy.  If a client sent its whole
delta, the error of that copy would come back in every delta and be added to x and to the next g_a.
So the client subtracts the coasting along what it decoded, and the server adds the coasting along
what it holds.  An exact delta is sent whole.
"""

from __future__ import annotations

from ..algorithms import Algorithm, Vector, Vectors
from .codecs import Codecs

__all__ = ["coasted", "news"]


def coasted(algorithm: Algorithm, codecs: Codecs, down: Vectors) -> Vector | None:
    """Return what a delta lacks when it is sent, per unit of lr_sum; None if it is sent whole."""
    return None if codecs.of("up", "delta").exact else algorithm.part.coasting(down, 1.0)


def news(
    algorithm: Algorithm, codecs: Codecs, down: Vectors, delta: Vector, lr_sum: float
) -> Vector:
    """Return what a client sends of its delta, given the ``down`` vectors that it decoded."""
    base = coasted(algorithm, codecs, down)
    return delta if base is None else delta.add(base, alpha=-algorithm.span(lr_sum))
