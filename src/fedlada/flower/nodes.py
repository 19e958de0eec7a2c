"""Assigns nodes to clients, and finds the number of partitions.

Every node reports its partition id and the number of partitions.  Its partition id decides its
place.  The server's config decides the number of partitions or, without it, the majority of the
connected nodes.  A warning names each node that reports another number.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection

from ..errors import require

__all__ = ["Nodes"]

log = logging.getLogger("fedlada")


class Nodes:
    """The nodes that have reported their partition ids."""

    def __init__(self, partitions: int | None = None) -> None:
        """Use the number of ``partitions`` of the server's config; None lets the nodes decide."""
        require(
            partitions is None or partitions > 0,
            f"the number of clients is {partitions}; it must be positive, or left to the nodes",
        )
        self._given = partitions is not None
        self.count = partitions or 0
        """The number of partitions; 0 before any node has reported one."""
        self.disagreeing: dict[int, int] = {}
        """The connected nodes that report another number, by partition id, and that number."""
        self._place: dict[int, int] = {}
        self._said: dict[int, int] = {}
        self._sites: dict[int, str] = {}
        self._warned: set[tuple[object, ...]] = set()

    def __len__(self) -> int:
        """Return the number of partitions that have a node."""
        return sum(partition < self.count for partition in self._place)

    def node(self, client: int) -> int | None:
        """Return the node of a client, if one has connected: of n nodes, client % n."""
        return self._place.get(client % self.count) if self.count else None

    def strangers(self, connected: Collection[int]) -> list[int]:
        """Return the connected nodes that have no place yet."""
        known = set(self._place.values())
        return [node for node in connected if node not in known]

    def name(self, client: int) -> str:
        """Return the number of a client's node and its site, if it has named one: ``3 (Ulm)``."""
        partition = client % self.count if self.count else client
        site = self._sites.get(partition)
        return f"{partition} ({site})" if site else f"{partition}"

    def place(
        self, node: int, partition: int, said: int, connected: Collection[int], site: str = ""
    ) -> None:
        """Give a node its place, unless another connected node has it."""
        before = self._place.get(partition)
        if before in connected:
            return
        if before is not None:
            self._said.pop(before, None)
        self._place[partition], self._said[node] = node, said
        self._sites[partition] = site

    def doubt(self, node: int, reason: str) -> None:
        """Warn of a node whose answer cannot be read; it gets no place."""
        self._warn((node, reason), f"node {node} sent no valid partition id: {reason}")

    def recount(self, connected: Collection[int]) -> None:
        """Take the number that most connected nodes report; keep the current one in a tie."""
        votes = Counter(said for node, said in self._said.items() if node in connected)
        if votes and not self._given:
            most = max(votes.values())
            first = [number for number in sorted(votes) if votes[number] == most]
            self.count = self.count if self.count in first else first[0]
        self.disagreeing = {
            partition: self._said[node]
            for partition, node in self._place.items()
            if node in connected and self._said[node] != self.count
        }
        for partition, said in self.disagreeing.items():
            node = self._place[partition]
            source = (
                "the server's config has"
                if self._given
                else f"{votes[self.count]} of {votes.total()} connected nodes have"
            )
            self._warn(
                (node, said, self.count),
                f"node {node} (partition-id {partition}) has num-partitions={said}, but {source}"
                f" {self.count}, which is used; fix the --node-config of that SuperNode",
            )

    def _warn(self, case: tuple[object, ...], sentence: str) -> None:
        """Log a warning once for each case."""
        if case not in self._warned:
            self._warned.add(case)
            log.warning(sentence)
