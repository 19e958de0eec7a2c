"""The header of a message: plain values, of exactly the agreed keys and types."""

from __future__ import annotations

from typing import cast

from flwr.app import ConfigRecord, RecordDict

from ...protocol.codecs import MalformedReply
from ...protocol.messages import LONGEST_NAME

__all__ = ["HEADER", "Header", "number"]

HEADER = "fedlada"
"""The name of the record."""
WIRE = range(-(2**63), 2**64)
"""The integers that Flower can carry."""


class Header:
    """Reads the header of a content, which must have exactly these records and keys."""

    def __init__(self, content: RecordDict, records: set[str], keys: set[str]) -> None:
        if not isinstance(content, RecordDict) or content.keys() != records:
            raise MalformedReply("wrong records")
        header = content[HEADER]
        if not isinstance(header, ConfigRecord):
            raise MalformedReply("wrong records")
        if header.keys() != keys:
            raise MalformedReply("wrong header keys")
        self._values = header

    def integer(self, key: str) -> int:
        """Return an integer."""
        value = self._values[key]
        if type(value) is not int or value not in WIRE:
            raise MalformedReply("wrong header value")
        return value

    def number(self, key: str) -> float:
        """Return a number."""
        return number(self._values[key], "wrong header value")

    def integers(self, key: str) -> list[int]:
        """Return a list of integers."""
        value = self._values[key]
        if not isinstance(value, list) or not all(type(i) is int and i in WIRE for i in value):
            raise MalformedReply("wrong header value")
        return cast(list[int], value)

    def texts(self, key: str) -> list[str]:
        """Return a list of texts."""
        value = self._values[key]
        if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
            raise MalformedReply("wrong header value")
        return cast(list[str], value)

    def bytes(self, key: str) -> bytes:
        """Return bytes."""
        value = self._values[key]
        if not isinstance(value, bytes):
            raise MalformedReply("wrong header value")
        return value

    def text(self, key: str, *, most: int = LONGEST_NAME) -> str:
        """Return a text that is not too long."""
        value = self._values[key]
        if not isinstance(value, str) or len(value) > most:
            raise MalformedReply("wrong header value")
        return value


def number(value: object, otherwise: str) -> float:
    """Return a number, or raise an error with the phrase ``otherwise``."""
    if not isinstance(value, float) and (type(value) is not int or value not in WIRE):
        raise MalformedReply(otherwise)
    return float(value)
