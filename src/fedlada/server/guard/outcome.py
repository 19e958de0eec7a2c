"""What the guard makes of a reply: its measurements, and the reply as it may be folded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ...protocol.messages import Reply

__all__ = ["Admitted", "Measured"]


@dataclass(frozen=True, kw_only=True)
class Admitted:
    """A reply that may be folded into the mean, and its weight."""

    reply: Reply
    weight: float
    limited: tuple[str, ...] = ()
    """What was corrected in it, such as the quantities reduced to their limits."""
    account: float | None = None
    """The client's account after this reply, if the server sums up one of its vectors."""


class Measured(NamedTuple):
    """A reply with the measured size of each of its quantities."""

    reply: Reply
    sizes: dict[str, float]
    low: tuple[str, ...] = ()
    """The vectors with an element below the lowest possible value."""
    rises: Mapping[str, Sequence[float]] = {}
    """The relative rise of each tensor of each second moment."""
