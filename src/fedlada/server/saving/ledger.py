"""The ledger: a file with the server's values of each client, to which checkpoints append.

A checkpoint that held an entry for every client ever seen would cost more with every client.  The
ledger is appended to instead, once per checkpoint, with the clients accepted since the last one,
and a manifest holds its length and the hash of that prefix.  A later entry of a client replaces an
earlier one.  Bytes behind the prefix were never part of a checkpoint, and are cut off before the
next entries are written.  When most entries have been replaced, a new ledger is written under
another name; the old one is kept while a checkpoint refers to it.
"""

from __future__ import annotations

import hashlib
import os
import re
import struct
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ...atomic import write
from ...errors import require
from ..state import ServerState

__all__ = ["LEDGER", "NEVER", "Entry", "Ledger"]

ENTRY = struct.Struct("<qqd")
"""How an entry is written."""
NEVER = -1
"""The round of a client without an accepted reply."""
SLACK = 100_000
"""A ledger is rewritten when it has this many entries more than twice the number of clients."""
LEDGER = re.compile(r"ledger-\d{8,}\.bin(\.part)?")
"""The names of ledgers, complete or not."""

Entry = tuple[int, int, float]
"""A client, the round of its last accepted reply, and its account with the guard."""


class Ledger:
    """The entries of all clients, up to the newest checkpoint."""

    def __init__(self, directory: Path) -> None:
        """Start without a file; the first entries make it."""
        self._directory = directory
        self._file: Path | None = None
        self._bytes, self._hash = 0, hashlib.sha256()

    @classmethod
    def read(
        cls, directory: Path, reference: Mapping[str, Any] | None
    ) -> tuple[Ledger, list[Entry]]:
        """Return the ledger that a manifest refers to, and its entries in order."""
        ledger = cls(directory)
        if reference is None:
            return ledger, []
        name, length = str(reference["file"]), int(reference["bytes"])
        require(
            LEDGER.fullmatch(name) is not None and length % ENTRY.size == 0,
            f"{name!r} of {length} bytes is not a ledger",
        )
        ledger._file = directory / name
        with ledger._file.open("rb") as file:
            content = file.read(length)
        ledger._grow(content)
        require(ledger._hash.hexdigest() == reference["sha256"], f"{name} is not what was written")
        return ledger, list(ENTRY.iter_unpack(content))

    def reference(self) -> dict[str, Any] | None:
        """Return the values by which a manifest refers to the ledger; None if it has no entry."""
        if self._file is None:
            return None
        return {
            "file": self._file.name,
            "bytes": self._bytes,
            "sha256": self._hash.hexdigest(),
        }

    def append(self, state: ServerState) -> None:
        """Write the entries of the clients that changed since the last checkpoint."""
        if self._full(state):
            clients = state.last_accepted.keys() | state.contributed.keys()
            if clients:
                self._rewrite(_packed(state, clients), state.round)
        elif state.changed:
            self._add(_packed(state, state.changed))
        state.changed.clear()

    def _full(self, state: ServerState) -> bool:
        """Return whether to write every client: at first, and when most entries are replaced."""
        clients = max(len(state.last_accepted), len(state.contributed))
        return self._file is None or self._bytes > ENTRY.size * (2 * clients + SLACK)

    def _add(self, content: bytes) -> None:
        assert self._file is not None
        with self._file.open("r+b") as file:
            file.truncate(self._bytes)
            file.seek(self._bytes)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        self._grow(content)

    def _rewrite(self, content: bytes, round: int) -> None:
        file = self._directory / f"ledger-{round:08}.bin"
        write(file, content)
        self._file, self._bytes, self._hash = file, 0, hashlib.sha256()
        self._grow(content)

    def _grow(self, content: bytes) -> None:
        self._bytes += len(content)
        self._hash.update(content)


def _packed(state: ServerState, clients: Iterable[int]) -> bytes:
    last, value = state.last_accepted, state.contributed
    return b"".join(
        ENTRY.pack(client, last.get(client, NEVER), value.get(client, 0.0))
        for client in sorted(clients)
    )
