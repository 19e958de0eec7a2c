"""The codecs by name, and the choice of a codec for each vector of a run.

A new codec needs its file and one line here, its import; its class says its name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from ...errors import FedladaError, nearest, require
from ...named import by_name
from .bf16 import BFloat16
from .block import Block
from .codec import Codec
from .eden import Eden as Eden
from .exact import Exact as Exact
from .fixed import Fixed as Fixed
from .masked import Masked as Masked
from .zstd import Zstd

__all__ = ["CODECS", "PRESETS", "Codecs", "Way"]

Way = Literal["down", "up"]

CODECS: dict[str, Codec] = {
    **{name: kind() for name, kind in by_name(globals(), Codec).items() if name},  # type: ignore[type-abstract]
    "bf16": Zstd(BFloat16()),
    **{f"int{bits}": Zstd(Block(bits)) for bits in (8, 6, 5, 4)},
    **{f"sub{bits}": Zstd(Block(bits, subtract=True)) for bits in (8, 5, 4)},
}
"""Every codec by name; to use another one, add it on both sides."""

PRESETS = {
    "safe": "x=bf16 g_a=int4 m_mean=int8 | delta=int8 m=int8",
    "default": "x=sub8 g_a=sub4 m_mean=sub8 | delta=sub5 m=sub8",
    "small": "x=int6 g_a=int4 m_mean=int8 | delta=eden2 m=int8",
}
"""Combinations of codecs by name; a vector that is not named is sent exactly."""

EVERY = "*"


@dataclass(frozen=True)
class Codecs:
    """The codec of each vector in each direction; a vector that is not named is sent exactly.

    >>> Codecs.read("exact")
    >>> Codecs.read("bf16")
    >>> Codecs.read("x=bf16 g_a=bf16 | delta=bf16")
    """

    down: Mapping[str, str] = field(default_factory=dict)
    up: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, text: str) -> Codecs:
        """Read one codec for all, or ``vector=codec`` words with ``|`` between down and up."""
        ways = PRESETS.get(text.strip(), text).split("|")
        require(
            len(ways) <= 2,
            f"codec is {text!r}; write the vectors that go down, then |, then those that come up:"
            " 'x=bf16 | delta=bf16'",
        )
        tables = [dict(_pair(word) for word in way.split()) for way in ways]
        return cls(*(_without_exact(table) for table in (tables * 2)[:2]))

    def of(self, way: Way, vector: str) -> Codec:
        """Return the codec of a vector."""
        return CODECS[self.name(way, vector)]

    def name(self, way: Way, vector: str) -> str:
        """Return the name of the codec of a vector."""
        table = self.down if way == "down" else self.up
        return table.get(vector, table.get(EVERY, "exact"))

    def __str__(self) -> str:
        """Return text for :meth:`read`, with versions, since the bits depend on them."""
        if not (self.down or self.up):
            return "exact"
        return " | ".join(
            " ".join(f"{vector}={name}/{CODECS[name].version}" for vector, name in table.items())
            for table in (self.down, self.up)
        )


def _pair(word: str) -> tuple[str, str]:
    vector, equals, name = word.rpartition("=")
    name, slash, version = name.partition("/")
    if name not in CODECS:  # a preset is no codec of a single vector
        known = nearest(name, [*CODECS, *PRESETS])
        raise FedladaError(f"there is no codec {name!r}; {known}")
    here = str(CODECS[name].version)
    require(
        not slash or version == here,
        f"the other side uses version {version} of codec {name}, and this side has version {here};"
        " install the same fedlada on both sides",
    )
    return vector if equals else EVERY, name


def _without_exact(table: dict[str, str]) -> dict[str, str]:
    """Return the table without entries that equal the default."""
    if table.get(EVERY, "exact") != "exact":
        return dict(sorted(table.items()))
    return {vector: name for vector, name in sorted(table.items()) if name != "exact"}
