"""Admission without a guard."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ...algorithms import Vector, Vectors
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

    def __init__(
        self, weighting: Weighting, lacking: Vector | None = None, *, unit_delta: bool = False
    ) -> None:
        """Admit replies whose deltas lack so much, per unit of lr_sum unless deltas are, too."""
        self._weighting, self._lacking, self._unit = weighting, lacking, unit_delta

    def measure(self, reply: Reply) -> Measured | Rejection:
        """Return the reply without measurements."""
        return Measured(reply, {})

    def answered(self, client: int) -> bool:
        """Return True: nothing is checked."""
        return True

    def calibrate(self, first: Sequence[Measured]) -> None:
        """Do nothing: there are no limits."""

    def admit(self, measured: Measured) -> Admitted | Rejection:
        """Admit the reply, with its delta whole."""
        reply = measured.reply
        if self._lacking is not None:
            lr_sum = 1.0 if self._unit else reply.lr_sum
            delta = reply.vectors.delta.add(self._lacking, alpha=lr_sum)
            reply = replace(reply, vectors=Vectors(reply.vectors | {"delta": delta}))
        return Admitted(reply=reply, weight=1 if self._weighting == "uniform" else reply.examples)

    def impossible(
        self, mean: Vectors, lr_sum: float, replies: int, delta_square: float
    ) -> str | None:
        """Return None: there are no limits."""
        return None
