"""The settings of secure aggregation (:mod:`.masking`): the groups whose sums are opened."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import check_counts, require

__all__ = ["LEAST", "MOST", "Masks"]

LEAST, MOST = 3, 100
"""The sizes of a group: with two clients each learns the other's reply from the sum, and the sum of
127 numbers of 25 bits has 32."""


@dataclass(frozen=True, kw_only=True)
class Masks:
    """Groups of clients of which the server learns the sum alone (``Plan.masks``)."""

    least: int = 20
    """The fewest clients of a group; a smaller one is not opened."""
    group: int = 64
    """The most clients of a group; a larger cohort is cut into several."""

    def __post_init__(self) -> None:
        check_counts(self, "least", "group")
        require(
            self.least >= LEAST and 2 * self.least <= self.group <= MOST,
            f"least is {self.least} and group is {self.group}; a group must have at least {LEAST}"
            f" and at most {MOST} clients, and group must be twice least or more, so that a larger"
            " cohort can be cut",
        )

    def groups(self, clients: Sequence[int]) -> list[list[int]]:
        """Cut clients into the fewest groups, of almost equal sizes; none if they are too few."""
        if len(clients) < self.least:
            return []
        count = -(-len(clients) // self.group)
        return [list(clients[i::count]) for i in range(count)]
