"""The clients that may be in one group under masks: the sites tell each other, not the server.

Each client has an Ed25519 key and a file with the public keys of all clients, as ``ssh-keygen``
writes them.  It signs its keys of every round, and sends nothing to a group in which one is not
signed by a client of the file, or two by the same.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import TypeVar

from ..errors import FedladaError, missing_extra, require
from .masks import LEAST

try:
    from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import (
        Ed25519PrivateKey,
        Ed25519PublicKey,
    )
    from cryptography.hazmat.primitives.serialization import (
        load_ssh_private_key,
        load_ssh_public_key,
    )
except ModuleNotFoundError as error:
    raise missing_extra(error, "secure aggregation", "fedlada[masks]") from None

__all__ = ["NOBODY", "SIGNED", "Identity"]

T = TypeVar("T")

PUBLIC = 32
SIGNED = PUBLIC + 64
"""Bytes of who has signed, and of the signature."""
NOBODY = bytes(SIGNED)
PURPOSE = b"fedlada masks "
"""What the key is for; a signature for another purpose is none here."""


class Identity:
    """A client's key, and the public keys of all clients that it knows."""

    def __init__(
        self, key: Ed25519PrivateKey, known: Collection[bytes], *, least: int = LEAST
    ) -> None:
        """Accept groups of ``least`` clients or more."""
        self._key, self._known, self._least = key, frozenset(known), least
        require(
            self._public() in self._known,
            "the public key of this client is not among those of all clients, so no other client"
            " would accept it; add it to the file of every site",
        )

    @classmethod
    def read(cls, key: Path, known: Path, *, least: int = LEAST) -> Identity:
        """Read the files of ``ssh-keygen -t ed25519``: a private key, and a public one per line."""
        lines = [line.strip() for line in _content(known).splitlines()]
        keys = [_loaded(load_ssh_public_key, line, known) for line in lines if line]
        private = _loaded(lambda text: load_ssh_private_key(text, None), _content(key), key)
        public = [each.public_bytes_raw() for each in keys if isinstance(each, Ed25519PublicKey)]
        if len(public) < len(keys) or not isinstance(private, Ed25519PrivateKey):
            raise FedladaError(
                f"{key} and {known} must have keys of type ed25519; make them with ssh-keygen -t"
                " ed25519"
            )
        return cls(private, public, least=least)

    def sign(self, message: bytes) -> bytes:
        """Return who signs, and the signature."""
        return self._public() + self._key.sign(PURPOSE + message)

    def check(self, signed: Sequence[tuple[bytes, bytes]]) -> None:
        """Check a group: what each client has signed, and who it is with the signature."""
        require(
            len(signed) >= self._least,
            f"the server shows a group of {len(signed)} clients, and this client sends nothing to"
            f" fewer than {self._least}",
        )
        valid = {who[:PUBLIC] for what, who in signed if self._knows(what, who)}
        require(
            len(valid) == len(signed),
            f"{len(valid)} of the {len(signed)} clients of a group are known and have signed their"
            " keys for this round; this client sends nothing to the others",
        )

    def _knows(self, what: bytes, who: bytes) -> bool:
        public, signature = who[:PUBLIC], who[PUBLIC:]
        try:
            Ed25519PublicKey.from_public_bytes(public).verify(signature, PURPOSE + what)
        except (InvalidSignature, ValueError):
            return False
        return public in self._known

    def _public(self) -> bytes:
        return self._key.public_key().public_bytes_raw()


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise FedladaError(
            f"{path} with keys for masks cannot be read ({error.strerror}); give a file that"
            " ssh-keygen -t ed25519 has made, without a passphrase"
        ) from None


def _loaded(load: Callable[[bytes], T], content: bytes, path: Path) -> T:
    try:
        return load(content)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise FedladaError(
            f"{path} has a line that is no key; give files that ssh-keygen -t ed25519 has made,"
            " without a passphrase"
        ) from None
