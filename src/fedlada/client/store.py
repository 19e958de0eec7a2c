"""Stores for the vectors that a client keeps between rounds (SCAFFOLD's c_i, FedDyn's h_i).

The vectors that a client computes in a round are *staged* under that round's number.  With the
next task the server names the round of the client's last accepted reply, and the client continues
from that version, so a lost reply cannot make the clients' c_i disagree with the server's c.
Older versions are kept as long as a checkpoint may need them, so that a run can be resumed.
"""

from __future__ import annotations

import hashlib
import io
import pickle
import re
import struct
import time
from collections.abc import Collection
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from ..algorithms import Vector, Vectors
from ..atomic import sync_names, write
from ..errors import FedladaError, require

__all__ = [
    "NEVER",
    "DiskStore",
    "LostState",
    "MemoryStore",
    "Store",
    "Version",
    "holds",
    "needless",
]

NEVER = -1
"""The last accepted round of a client that never took part."""

FORGET = 30 * 24 * 3600.0
"""Seconds after which a client's vectors of another run are deleted from disk."""

MAGIC = b"fedlada\x01"
"""The first bytes of a file; the SHA-256 of the rest follows."""

NAME = re.compile(r"(.+)-(\d+)\.pt")
"""The name of a file: the run and the round of its vectors."""

DAMAGE = (
    *(ValueError, RuntimeError, EOFError, ArithmeticError, LookupError, struct.error),
    pickle.UnpicklingError,
)
"""The errors that reading a damaged file may raise."""

Version = tuple[str, int]
"""The run and the round in which a client's vectors were computed."""


class LostState(FedladaError):
    """A client no longer has the vectors that the server expects it to keep."""


class Store(Protocol):
    """Keeps vectors by client number; a client that never took part has none."""

    def load(self, client: int, version: Version) -> Vectors:
        """Return the client's vectors of that run and round; none for round ``NEVER``."""
        ...

    def stage(self, client: int, version: Version, kept: Vectors) -> None:
        """Store the vectors that the client keeps if its reply of this round is accepted."""
        ...

    def settle(self, client: int, version: Version, resumable_from: int) -> None:
        """Note the client's last accepted version and delete versions that no task will need.

        The run can be resumed from round ``resumable_from`` or any later checkpoint.
        """
        ...


def needless(versions: Collection[Version], last: Version, resumable_from: int) -> list[Version]:
    """Return the versions of this run that no task will need; other runs may still be resumed.

    Versions after ``last`` were not accepted, or belong to rounds that were lost.  Of the earlier
    versions, a run resumed from round ``resumable_from`` needs the newest before that round, and
    a run resumed from a later checkpoint needs a version since then.
    """
    run, round = last
    rounds = [r for name, r in versions if name == run]
    before = [r for r in rounds if r < resumable_from and r <= round]
    needed = {r for r in rounds if resumable_from <= r <= round} | {max(before, default=NEVER)}
    return [(run, r) for r in rounds if r not in needed]


class MemoryStore:
    """Client vectors in memory."""

    def __init__(self) -> None:
        self._held: dict[int, dict[Version, Vectors]] = {}

    def load(self, client: int, version: Version) -> Vectors:
        held = self._held.get(client, {})
        return held[version] if holds(client, held, version) else Vectors()

    def stage(self, client: int, version: Version, kept: Vectors) -> None:
        self._held.setdefault(client, {})[version] = kept

    def settle(self, client: int, version: Version, resumable_from: int) -> None:
        held = self._held.get(client, {})
        for old in needless(held, version, resumable_from):
            del held[old]


class DiskStore:
    """Client vectors as files, with one directory for each client that took part."""

    def __init__(self, directory: str | Path) -> None:
        self._directory = Path(directory)
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise FedladaError(
                f"{directory} cannot be created ({error.strerror}); give another directory for the"
                " clients' vectors"
            ) from error

    def load(self, client: int, version: Version) -> Vectors:
        self._check_directory(client)
        if not holds(client, self._versions(client), version):
            return Vectors()
        path = self._path(client, version)
        try:
            vectors = _opened(path.read_bytes())
        except DAMAGE as error:
            raise LostState(
                f"the vectors that client {client} kept in round {version[1]} are damaged: {path}"
                f" is not what was written ({error}). Restore that file from a backup; without it"
                " this run cannot use the client any more: start a new run in another directory"
            ) from error
        return Vectors((name, Vector(tensors)) for name, tensors in vectors.items())

    def stage(self, client: int, version: Version, kept: Vectors) -> None:
        path = self._path(client, version)
        self._check_directory(client)
        content = io.BytesIO()
        torch.save({name: [t.cpu() for t in vector] for name, vector in kept.items()}, content)
        try:
            if not path.parent.exists():
                path.parent.mkdir(exist_ok=True)
                sync_names(self._directory)
            write(path, _sealed(content.getvalue()))
        except OSError as error:
            raise FedladaError(
                f"the vectors that client {client} keeps could not be written to {path}"
                f" ({error.strerror}). Free disk space and run the same command again: a run with"
                " checkpoints resumes after its last round"
            ) from error

    def settle(self, client: int, version: Version, resumable_from: int) -> None:
        versions = self._versions(client)
        forgotten = needless(versions, version, resumable_from)
        forgotten += [v for v in versions if v[0] != version[0] and self._age(client, v) > FORGET]
        for old in forgotten:
            self._path(client, old).unlink()
        for part in self._client(client).glob("*.pt.part"):  # left by a killed process
            part.unlink(missing_ok=True)

    def _versions(self, client: int) -> list[Version]:
        names = (NAME.fullmatch(path.name) for path in self._client(client).glob("*-*.pt"))
        return [(name[1], int(name[2])) for name in names if name is not None]

    def _check_directory(self, client: int) -> None:
        if not self._directory.is_dir():
            raise LostState(
                f"{self._directory}, where client {client} keeps its vectors, is gone: it was"
                " deleted or moved during the run. Restore it and run the same command again, or"
                " start a new run in another directory"
            )

    def _age(self, client: int, version: Version) -> float:
        return time.time() - self._path(client, version).stat().st_mtime

    def _client(self, client: int) -> Path:
        return self._directory / str(client)

    def _path(self, client: int, version: Version) -> Path:
        run, round = version
        return self._client(client) / f"{run}-{round}.pt"


def _sealed(content: bytes) -> bytes:
    """Return the bytes of a file: its hash, then its content."""
    return MAGIC + hashlib.sha256(content).digest() + content


def _opened(file: bytes) -> dict[str, list[Tensor]]:
    """Return the tensors of a file; raise one of ``DAMAGE`` if it is not what was written."""
    require(file.startswith(MAGIC), "it is empty, or begins with something else")
    start = len(MAGIC) + hashlib.sha256().digest_size
    digest, content = file[len(MAGIC) : start], file[start:]
    require(hashlib.sha256(content).digest() == digest, "its hash does not fit")
    vectors: dict[str, list[Tensor]] = torch.load(io.BytesIO(content), weights_only=True)
    return vectors


def holds(client: int, versions: Collection[Version], version: Version) -> bool:
    """Return whether there is something to load; raise an error if it was lost."""
    if version[1] == NEVER:
        return False
    if version not in versions:
        have = ", ".join(str(r) for run, r in sorted(versions) if run == version[0]) or "none"
        raise LostState(
            f"the server last accepted client {client}'s reply of round {version[1]}, but the"
            f" client has only vectors of these rounds of the run: {have}. Its store lost the newer"
            " ones: give it a directory that survives a restart"
        )
    return True
