"""Strict readers of untrusted values: each checks the type and the size, and converts nothing.

The values come from a JSON parser.  The readers raise only :class:`MalformedReply`.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from torch import Tensor

from ..algorithms import Vector
from ..errors import MOST
from .codecs import MalformedReply

__all__ = [
    "MOST",
    "Tensors",
    "alike",
    "counts",
    "integer",
    "items",
    "number",
    "table",
    "text",
]

Tensors = Mapping[str, Sequence[Tensor]]
"""The tensors of a message by name; a vector is a list of them."""

LONGEST_TEXT = 300

MOST_KEYS = 10**6
"""Largest number of entries in a list or a mapping."""


def table(value: object, keys: Collection[str] | None = None) -> dict[str, Any]:
    """Return a mapping with exactly these keys, or with few keys that are printable text."""
    if not isinstance(value, dict) or len(value) > MOST_KEYS:
        raise MalformedReply("wrong values of a tally")
    if keys is not None and value.keys() != set(keys):
        raise MalformedReply("wrong keys of a tally")
    for key in value:
        text(key)
    return value


def items(value: object, *, least: int = 0, most: int = MOST_KEYS) -> list[object]:
    """Return a list that is not too long."""
    if not isinstance(value, list) or not least <= len(value) <= most:
        raise MalformedReply("wrong values of a tally")
    return value


def text(value: object) -> str:
    """Return a short printable text without line breaks."""
    if not isinstance(value, str) or len(value) > LONGEST_TEXT or not value.isprintable():
        raise MalformedReply("wrong text in a tally")
    return value


def integer(value: object, *, least: int = 0, most: int = MOST) -> int:
    """Return an integer within bounds."""
    if type(value) is not int or not least <= value <= most:
        raise MalformedReply("impossible counts in a tally")
    return value


def number(value: object, *, finite: bool = True) -> float:
    """Return a floating-point number."""
    if not isinstance(value, float) or (finite and not math.isfinite(value)):
        raise MalformedReply("wrong number in a tally")
    return value


def counts(value: object) -> dict[str, int]:
    """Return positive counts by name."""
    return {name: integer(n, least=1) for name, n in table(value).items()}


def alike(tensors: Tensors, name: str, like: Vector) -> Vector:
    """Return a vector, whose tensors must have the shapes and types of ``like``, on its devices."""
    vector = tensors.get(name)
    if vector is None or len(vector) != len(like):
        raise MalformedReply("wrong vectors of a tally")
    for t, expected in zip(vector, like, strict=True):
        if (t.shape, t.dtype, t.layout) != (expected.shape, expected.dtype, expected.layout):
            raise MalformedReply("wrong shapes or types in a tally")
    pairs = zip(vector, like, strict=True)
    # A shape alone is on the device meta, which has no numbers.
    return Vector(t if u.is_meta else t.to(u.device) for t, u in pairs)
