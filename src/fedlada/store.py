"""Where the vectors live that a client keeps between rounds (SCAFFOLD's c_i, FedDyn's h_i).

What a client computes in a round is *staged*; only when the server has accepted its reply is it
committed.  So the server's c and the clients' c_i can never drift apart over a lost reply.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import torch

from .algorithms import Vector, Vectors

__all__ = ["DiskStore", "MemoryStore", "Store"]


class Store(Protocol):
    """Client vectors by client number; nothing is held for a client that never took part."""

    def load(self, client: int) -> Vectors:
        """What the client keeps; empty if it never took part."""
        ...

    def round(self, client: int) -> int:
        """The round in which it was computed; -1 if the client never took part."""
        ...

    def stage(self, client: int, round: int, kept: Vectors) -> None:
        """Remember what the client will keep if its reply of this round is accepted."""
        ...

    def commit(self, round: int, clients: Sequence[int]) -> None:
        """Make what these clients staged in this round theirs, and forget all else staged."""
        ...


class MemoryStore:
    """Client vectors in memory."""

    def __init__(self) -> None:
        self._kept: dict[int, tuple[int, Vectors]] = {}
        self._staged: dict[int, tuple[int, Vectors]] = {}

    def load(self, client: int) -> Vectors:
        return self._kept[client][1] if client in self._kept else Vectors()

    def round(self, client: int) -> int:
        return self._kept[client][0] if client in self._kept else -1

    def stage(self, client: int, round: int, kept: Vectors) -> None:
        self._staged[client] = (round, kept)

    def commit(self, round: int, clients: Sequence[int]) -> None:
        for client in clients:
            if client in self._staged and self._staged[client][0] == round:
                self._kept[client] = self._staged[client]
        self._staged.clear()


class DiskStore:
    """Client vectors as one file per client that took part, replaced atomically."""

    def __init__(self, directory: str | Path) -> None:
        self._kept, self._staged = Path(directory) / "kept", Path(directory) / "staged"
        for made in (self._kept, self._staged):
            made.mkdir(parents=True, exist_ok=True)

    def load(self, client: int) -> Vectors:
        content = self._read(client)
        return Vectors((name, Vector(tensors)) for name, tensors in content["vectors"].items())

    def round(self, client: int) -> int:
        return int(self._read(client)["round"])

    def stage(self, client: int, round: int, kept: Vectors) -> None:
        vectors = {name: [t.cpu() for t in vector] for name, vector in kept.items()}
        written = self._staged / f"{client}.part"
        torch.save({"round": round, "vectors": vectors}, written)
        written.replace(self._staged / f"{client}-{round}.pt")

    def commit(self, round: int, clients: Sequence[int]) -> None:
        for client in clients:
            if (staged := self._staged / f"{client}-{round}.pt").exists():
                staged.replace(self._kept / f"{client}.pt")
        for left in self._staged.iterdir():
            left.unlink()

    def _read(self, client: int) -> dict[str, Any]:
        path = self._kept / f"{client}.pt"
        if not path.exists():
            return {"round": -1, "vectors": {}}
        content: dict[str, Any] = torch.load(path, weights_only=True)
        return content
