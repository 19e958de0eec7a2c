"""Where the vectors live that a client keeps between rounds (SCAFFOLD's c_i, FedDyn's h_i).

What a client computes in a round is *staged*; only when the server has accepted its reply is it
committed.  So the server's c and the clients' c_i can never drift apart over a lost reply.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import torch

from .algorithms import Vector, Vectors

__all__ = ["DiskStore", "MemoryStore", "Store"]


class Store(Protocol):
    """Client vectors by client number; nothing is held for a client that never took part."""

    def load(self, client: int) -> Vectors:
        """What the client keeps; empty if it never took part."""
        ...

    def stage(self, client: int, round: int, kept: Vectors) -> None:
        """Remember what the client will keep if its reply is accepted."""
        ...

    def commit(self, round: int, clients: Sequence[int]) -> None:
        """Make what these clients staged theirs, and forget what others staged."""
        ...


class MemoryStore:
    """Client vectors in memory."""

    def __init__(self) -> None:
        self._kept: dict[int, Vectors] = {}
        self._staged: dict[int, Vectors] = {}

    def load(self, client: int) -> Vectors:
        return self._kept.get(client, Vectors())

    def stage(self, client: int, round: int, kept: Vectors) -> None:
        self._staged[client] = kept

    def commit(self, round: int, clients: Sequence[int]) -> None:
        accepted = set(clients)
        self._kept.update({c: kept for c, kept in self._staged.items() if c in accepted})
        self._staged.clear()


class DiskStore:
    """Client vectors as one file per client that took part, replaced atomically."""

    def __init__(self, directory: str | Path) -> None:
        self._kept, self._staged = Path(directory) / "kept", Path(directory) / "staged"
        for made in (self._kept, self._staged):
            made.mkdir(parents=True, exist_ok=True)
        self._forget()

    def load(self, client: int) -> Vectors:
        path = self._kept / f"{client}.pt"
        if not path.exists():
            return Vectors()
        content = torch.load(path, weights_only=True)
        return Vectors((name, Vector(tensors)) for name, tensors in content.items())

    def stage(self, client: int, round: int, kept: Vectors) -> None:
        content = {name: [t.cpu() for t in vector] for name, vector in kept.items()}
        torch.save(content, self._staged / f"{client}.pt")

    def commit(self, round: int, clients: Sequence[int]) -> None:
        for client in clients:
            if (staged := self._staged / f"{client}.pt").exists():
                staged.replace(self._kept / staged.name)
        self._forget()

    def _forget(self) -> None:
        for staged in self._staged.iterdir():
            staged.unlink()
