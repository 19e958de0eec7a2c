"""Admission without a guard."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...algorithms import Vectors
from ...protocol.messages import Rejection, Reply
from .admission import Weighting
from .limits import Limit
from .outcome import Admitted, Measured

__all__ = ["Open"]


class Open:
    """No guard: every reply is admitted unchanged."""

    limits: Mapping[str, Limit] | None = {}
    calibration = 0
    quantities: frozenset[str] = frozenset()
    moments: frozenset[str] = frozenset()

    def __init__(self, weighting: Weighting) -> None:
        self._weighting = weighting

    def measure(self, reply: Reply) -> Measured | Rejection:
        """Return the reply without measurements."""
        return Measured(reply, {})

    def answered(self, client: int) -> bool:
        """Return True: nothing is checked."""
        return True

    def calibrate(self, first: Sequence[Measured]) -> None:
        """Do nothing: there are no limits."""

    def admit(self, measured: Measured) -> Admitted | Rejection:
        """Admit the reply unchanged."""
        weight = 1 if self._weighting == "uniform" else measured.reply.examples
        return Admitted(reply=measured.reply, weight=weight)

    def impossible(self, mean: Vectors, lr_sum: float, replies: int) -> str | None:
        """Return None: there are no limits."""
        return None
