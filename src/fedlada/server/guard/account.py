"""A client's account: how much its replies have lengthened a vector that the server sums up.

SCAFFOLD's c and FedDyn's h are sums over all rounds.  An honest client's changes add up to a
vector that stays bounded, its own mean gradient; a liar's need not.  The server cannot keep that
vector for every client, but one number is enough: the part of each change along the sum's current
direction, added up.  These numbers, over all clients, are what the length of the sum is made of.
"""

from __future__ import annotations

from collections.abc import Mapping

from ...algorithms import Algorithm, Vectors

__all__ = ["Accounts"]


class Accounts:
    """What each client has contributed to the length of the sum so far."""

    def __init__(
        self, algorithm: Algorithm, server: Vectors, contributed: Mapping[int, float]
    ) -> None:
        """Measure along the direction of the first vector that the algorithm sums up, if any."""
        self._contributed = contributed
        self.up: str | None = None
        """The vector of a reply that is added to the sum; None if the sum is still zero."""
        for total in algorithm.sums[:1]:
            length = server[total.into].norm() if total.into in server else 0.0
            if length > 0:
                self.up, self._direction = total.up, server[total.into] / length
        self.name = f"total {self.up}"

    def along(self, vectors: Vectors) -> float:
        """Return how much a reply's vectors lengthen the sum."""
        return 0.0 if self.up is None else vectors[self.up].dot(self._direction)

    def after(self, client: int, along: float) -> float:
        """Return the client's account after a reply."""
        return self._contributed.get(client, 0.0) + along

    def share(self, client: int, along: float, limit: float) -> float:
        """Return the factor on the reply that keeps the client's account within the limit."""
        before = self._contributed.get(client, 0.0)
        if abs(before + along) <= limit or not along:
            return 1.0
        room = limit - before if along > 0 else limit + before
        return min(1.0, max(0.0, room) / abs(along))
