"""Stores for the vectors of a node's clients: on disk, or in Flower's own state."""

from __future__ import annotations

from flwr.app import ArrayRecord, Context

from ..algorithms import Vectors
from ..client.store import DiskStore, Store, Version, holds, needless
from ..protocol.codecs import Codecs
from ..protocol.manifest import Manifest
from ..protocol.wire import send
from .wire.records import pack, unpack

__all__ = ["STATE_DIRECTORY", "ContextStore", "client_store"]

STATE_DIRECTORY = "state-directory"
"""The key in a node's config for the directory of its clients' vectors."""

KEPT = "fedlada.kept."


def client_store(manifest: Manifest, context: Context) -> Store:
    """Return the store for the vectors of this node's clients.

    The node's config names a directory on disk.  In a simulation nodes have no config, and the
    run's config names it.
    """
    directory = context.node_config.get(STATE_DIRECTORY) or context.run_config.get(STATE_DIRECTORY)
    return DiskStore(str(directory)) if directory else ContextStore(context, manifest)


class ContextStore:
    """Client vectors in Flower's ``Context.state``: they last as long as the node's process."""

    def __init__(self, context: Context, manifest: Manifest) -> None:
        self._state, self._manifest = context.state, manifest

    def load(self, client: int, version: Version) -> Vectors:
        if not holds(client, self._versions(client), version):
            return Vectors()
        kept = self._state[_key(client, version)]
        assert isinstance(kept, ArrayRecord)
        vectors, _ = unpack(kept, self._manifest, Codecs(), "down")
        return vectors

    def stage(self, client: int, version: Version, kept: Vectors) -> None:
        self._state[_key(client, version)] = pack(send(kept, Codecs(), "down", seed=0))

    def settle(self, client: int, version: Version, resumable_from: int) -> None:
        for old in needless(self._versions(client), version, resumable_from):
            del self._state[_key(client, old)]

    def _versions(self, client: int) -> list[Version]:
        prefix = f"{KEPT}{client}."
        keys = [key for key in self._state if key.startswith(prefix)]
        names = [key.removeprefix(prefix).rpartition("-") for key in keys]
        return [(run, int(round)) for run, _, round in names]


def _key(client: int, version: Version) -> str:
    return f"{KEPT}{client}.{version[0]}-{version[1]}"
