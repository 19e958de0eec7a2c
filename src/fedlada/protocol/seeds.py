"""Seeds: every random choice is a function of (seed, purpose, round, client)."""

from __future__ import annotations

import hashlib

__all__ = ["seed_of"]


def seed_of(*key: int | str) -> int:
    """Return a 63-bit seed for a key such as (seed, "client", round, client)."""
    digest = hashlib.blake2b(repr(key).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1
