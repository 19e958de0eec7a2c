"""Samplers choose the clients of a round from the seed, the round and the number of clients."""

from __future__ import annotations

import math
import random
from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol

from ..errors import require
from ..protocol.seeds import seed_of

__all__ = ["Bernoulli", "FixedSize", "Sampler"]


class Sampler(Protocol):
    """Chooses the cohort of a round."""

    def cohort(self, seed: int, round: int, clients: int, busy: Collection[int] = ()) -> list[int]:
        """Return the clients of the round, in increasing order, out of ``range(clients)``.

        Where replies may be late (``staleness``), ``busy`` are the clients that are under way: none
        of them may be asked.
        """
        ...


@dataclass(frozen=True)
class FixedSize:
    """Draws a fixed number of clients without replacement, as in the paper."""

    size: int
    """Number of clients of each round."""

    def cohort(self, seed: int, round: int, clients: int, busy: Collection[int] = ()) -> list[int]:
        """Return so many clients that, with those that are busy, ``size`` are under way."""
        require(
            0 < self.size <= clients,
            f"a cohort of {self.size} was asked for out of {clients} clients; it must be between"
            f" 1 and {clients}",
        )
        generator = random.Random(seed_of(seed, "cohort", round))
        drawn = generator.sample(range(clients), self.size)
        return sorted([client for client in drawn if client not in busy][: self.size - len(busy)])


@dataclass(frozen=True)
class Bernoulli:
    """Draws every client independently with the same probability; a cohort is never empty.

    An empty draw is repeated, so in tiny federations the actual rate is slightly above ``rate``.
    """

    rate: float

    def cohort(self, seed: int, round: int, clients: int, busy: Collection[int] = ()) -> list[int]:
        """Return the clients that were drawn; a plan with ``staleness`` has no such sampler."""
        require(0 < self.rate <= 1, f"rate is {self.rate}; it must be above 0 and at most 1")
        if self.rate == 1:
            return list(range(clients))
        generator = random.Random(seed_of(seed, "cohort", round))
        while True:
            # Gaps between chosen clients are geometric, so the cost grows with the cohort only.
            cohort: list[int] = []
            client = -1
            while True:
                gap = math.log(1 - generator.random()) / math.log1p(-self.rate)
                client += 1 + int(min(gap, clients))
                if client >= clients:
                    break
                cohort.append(client)
            if cohort:
                return cohort
