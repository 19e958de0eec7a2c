"""A node's part in the masks of a round: its secrets stay here between the server's messages.

A warm node keeps them in the memory of its worker.  On any other node each message is a new
process, and they are in a file that the node's user alone can read.  Flower's own ``Context`` would
not do: Flower stores it after the reply was sent, and two messages that come at once begin with the
same one, so a server could get two answers to one question.  Here a message takes the secrets away
before it is answered, and puts them back for the next step alone.
"""

from __future__ import annotations

import hashlib
import os
import time
import uuid
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from flwr.app import Context

from ..errors import FedladaError, require
from ..protocol.messages import Reply, Task
from .home import private_directory
from .warm.keeping import in_worker
from .wire.records import Question

if TYPE_CHECKING:
    from ..privacy.identity import Identity
    from ..privacy.masking import Masker

__all__ = [
    "DIRECTORY",
    "IDENTITY",
    "answer",
    "check_masked",
    "identity_of",
    "masked",
    "under_way",
]

DIRECTORY = "fedlada-masks"
"""The folder in FLWR_HOME with the secrets of rounds that are under way."""
KEY, KNOWN, LEAST = "masks-key", "masks-known", "masks-least"
"""The keys in a node's config for the file of its key, the file of the public keys of all clients,
and the fewest clients of a group."""
IDENTITY = (KEY, KNOWN, LEAST)
FORGET = 24 * 3600.0
"""Seconds after which secrets are deleted: their client was lost before the end of a round."""


def answer(question: Question, context: Context) -> bytes:
    """Answer the server about the masks of a round."""
    from ..privacy.masking import Masker

    place, client = _place(), _client(question.client, context)
    name, identity = _name(client, question.context), identity_of(context.node_config)
    if question.step == "keys":
        place.forget(client)
        masker = Masker(question.context, identity)
    else:
        masker = _taken(place, name, identity)
    told = masker.answer(question.step, question.message)
    if question.step != "unmask":
        place.put(name, masker.saved())
    return told


def masked(reply: Reply, task: Task, context: Context) -> Reply:
    """Put the reply of a client to a task with masks under its masks."""
    from ..privacy.masked import masked_reply
    from ..privacy.masking import context_of

    require(
        task.clips is not None,
        "the server asks for masks without privacy, whose clips make a reply the numbers that masks"
        " hide; both must run the same fedlada",
    )
    place, name = _place(), _name(_client(reply.client, context), context_of(task))
    masker = _taken(place, name, identity_of(context.node_config))
    hidden = masked_reply(reply, task, masker)
    place.put(name, masker.saved())
    return hidden


def check_masked(context: Context, *, hidden: bool) -> None:
    """Refuse what would not be hidden by masks, if this node's config names a key for them."""
    require(
        hidden or not (context.node_config.get(KEY) or context.node_config.get(KNOWN)),
        f"the server asks for an answer without masks, and this node's config has {KEY} or {KNOWN},"
        " so it gives none; give masks in the run's config",
    )


def under_way() -> bool:
    """Return whether this process holds secrets of a round that may go on."""
    _memory.forget("")
    return len(_memory) > 0


class _Place(Protocol):
    """Where secrets wait by name; they can be taken once.

    ``forget`` deletes those of a client, and what nobody has asked for since a day.
    """

    def put(self, name: str, secret: bytes) -> None: ...

    def take(self, name: str) -> bytes | None: ...

    def forget(self, client: str) -> None: ...


class _Memory:
    """In this process, which answers one message after another."""

    def __init__(self) -> None:
        self._held: dict[str, tuple[float, bytes]] = {}

    def __len__(self) -> int:
        return len(self._held)

    def put(self, name: str, secret: bytes) -> None:
        self._held[name] = time.time(), secret

    def take(self, name: str) -> bytes | None:
        return self._held.pop(name, (0.0, None))[1]

    def forget(self, client: str) -> None:
        for name, (since, _) in list(self._held.items()):
            if _of(name, client) or time.time() - since > FORGET:
                del self._held[name]


class _Files:
    """In a directory: of several processes that want a file at once, one gets it."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def put(self, name: str, secret: bytes) -> None:
        part = self._other(name)
        with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(secret)
        part.replace(self._directory / name)

    def take(self, name: str) -> bytes | None:
        mine = self._other(name)
        try:
            (self._directory / name).rename(mine)
        except FileNotFoundError:
            return None
        secret = mine.read_bytes()
        mine.unlink()
        return secret

    def forget(self, client: str) -> None:
        for path in self._directory.iterdir():
            with suppress(FileNotFoundError):  # another process has taken it
                if _of(path.name, client) or time.time() - path.lstat().st_mtime > FORGET:
                    path.unlink()

    def _other(self, name: str) -> Path:
        return self._directory / f"{name}.{uuid.uuid4().hex}"


_memory = _Memory()


def _place() -> _Place:
    return _memory if in_worker() else _Files(private_directory(DIRECTORY))


def _client(client: int, context: Context) -> str:
    return f"{context.node_id:x}-{context.run_id:x}-{client}"


def _name(client: str, of: str) -> str:
    """Return the name of the secrets of a client for the round that a context names."""
    return f"{client}.{hashlib.sha256(of.encode()).hexdigest()[:32]}"


def _of(name: str, client: str) -> bool:
    """Return whether secrets that wait, and are not being written or taken, are of a client."""
    owner, *rest = name.split(".")
    return owner == client and len(rest) == 1


def _taken(place: _Place, name: str, identity: Identity | None) -> Masker:
    from ..privacy.masking import Masker

    secret = place.take(name)
    if secret is None:
        raise FedladaError(
            "this node has no secrets for the masks of this message: it was started again within"
            " the round, or the server asks twice, or out of order; it gives no answer"
        )
    return Masker.restored(secret, identity)


def identity_of(node: Mapping[str, object]) -> Identity | None:
    """Read the key of a node, and those of all clients, if its config names them."""
    key, known = node.get(KEY), node.get(KNOWN)
    if not key and not known:
        return None
    require(
        bool(key and known),
        f"the node's config has one of {KEY} and {KNOWN}, and needs both: the file of this node's"
        " key, and that of the public keys of all clients",
    )
    from ..privacy.identity import Identity
    from ..privacy.masks import LEAST as FEWEST

    least = node.get(LEAST, FEWEST)
    require(
        type(least) is int and least >= FEWEST,
        f"{LEAST} is {least!r}; it must be the fewest clients of a group, at least {FEWEST}",
    )
    assert isinstance(least, int)
    return Identity.read(Path(str(key)), Path(str(known)), least=least)
