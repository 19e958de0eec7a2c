"""What tables and figures need of a run, whatever runs it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from ..server.plan import Plan
from ..server.record import RoundRecord

__all__ = ["Recorded"]


@runtime_checkable
class Recorded(Protocol):
    """A run that has its records, such as a :class:`fedlada.Simulation`."""

    plan: Plan

    @property
    def records(self) -> Sequence[RoundRecord]:
        """The records of all rounds so far."""
        ...

    @property
    def score(self) -> str | None:
        """The metric by which models are compared; None if it is not known."""
        ...
