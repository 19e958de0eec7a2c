"""Which node is which client, and how many there are.

A node says its own partition id and how many partitions there are.  The first decides its place.
The second decides nothing by itself: the server's config says how many there are or, without it,
the majority of the connected nodes.  A node that says another number is named in a warning.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection

from ..errors import require

__all__ = ["Nodes"]

log = logging.getLogger("fedlada")


class Nodes:
    """The nodes that have said who they are, by partition id."""

    def __init__(self, partitions: int | None = None) -> None:
        """``partitions`` is the number of the server's config; None leaves it to the nodes."""
        require(
            partitions is None or partitions > 0,
            f"the number of clients is {partitions}; it must be positive, or left to the nodes",
        )
        self._given = partitions is not None
        self.count = partitions or 0
        """The number of partitions; 0 before any node has said one."""
        self.disagreeing: dict[int, int] = {}
        """The connected nodes that say another number, by partition id, and what they say."""
        self._place: dict[int, int] = {}
        self._said: dict[int, int] = {}
        self._warned: set[tuple[object, ...]] = set()

    def __len__(self) -> int:
        """Return the number of partitions that have a node."""
        return sum(partition < self.count for partition in self._place)

    def node(self, client: int) -> int | None:
        """Return the node of a client, if one has connected: of n nodes, client % n."""
        return self._place.get(client % self.count) if self.count else None

    def strangers(self, there: Collection[int]) -> list[int]:
        """Return the connected nodes that have no place yet."""
        known = set(self._place.values())
        return [node for node in there if node not in known]

    def place(self, node: int, partition: int, said: int, there: Collection[int]) -> None:
        """Give a node its place, unless a connected node has it."""
        before = self._place.get(partition)
        if before in there:
            return
        if before is not None:
            self._said.pop(before, None)
        self._place[partition], self._said[node] = node, said

    def doubt(self, node: int, reason: str) -> None:
        """Warn of a node whose answer cannot be understood; it has no place."""
        self._warn((node, reason), f"node {node} does not say which client it is: {reason}")

    def recount(self, there: Collection[int]) -> None:
        """Take the number that most of the connected nodes say; of two such, the present one."""
        votes = Counter(said for node, said in self._said.items() if node in there)
        if votes and not self._given:
            most = max(votes.values())
            first = [number for number in sorted(votes) if votes[number] == most]
            self.count = self.count if self.count in first else first[0]
        self.disagreeing = {
            partition: self._said[node]
            for partition, node in self._place.items()
            if node in there and self._said[node] != self.count
        }
        for partition, said in self.disagreeing.items():
            node = self._place[partition]
            who = (
                "the server's config says"
                if self._given
                else f"{votes[self.count]} of {votes.total()} connected nodes say"
            )
            self._warn(
                (node, said, self.count),
                f"node {node} (partition-id {partition}) says num-partitions={said} and"
                f" {who} {self.count}, which counts; mend the --node-config of that SuperNode",
            )

    def _warn(self, case: tuple[object, ...], sentence: str) -> None:
        """Warn of each case once."""
        if case not in self._warned:
            self._warned.add(case)
            log.warning(sentence)
