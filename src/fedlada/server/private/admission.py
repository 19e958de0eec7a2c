"""The admission of a private run: what happens to a reply depends on that reply alone.

A limit that followed from a median of replies would let one reply change what happens to all
others, and no noise hides that.  So nothing is measured here but a reply's own length.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from ...algorithms import Algorithm, Round, Vector, Vectors
from ...privacy.news import BELOW
from ...protocol.codecs.fixed import length_of, uncut
from ...protocol.messages import Rejection, Reply, Task
from ..guard import Admitted, Limit, Measured
from ..guard.contract import Contract

__all__ = ["ROUNDING", "Private"]

ROUNDING = 1e-6
"""How far a vector may be beyond its clip, relative to the clip."""


class Private:
    """Admits replies whose parts, in units of their clips, are at most 1 long."""

    limits: Mapping[str, Limit] | None = {}
    calibration = 0
    quantities: frozenset[str] = frozenset()
    moments: frozenset[str] = frozenset()

    def __init__(self, algorithm: Algorithm, task: Task, cohort: Collection[int]) -> None:
        self._contract = Contract(algorithm, task, cohort)
        self.bits = frozenset(BELOW + name for name in algorithm.up)
        """The names of the scalars that are averaged beside the vectors."""

    def measure(self, reply: Reply) -> Measured | Rejection:
        """Check that the reply answers this task in the agreed form."""
        breach = self._contract.breach(reply)
        if breach is None:
            return Measured(reply, {})
        return Rejection(client=reply.client, reason=breach, nbytes=reply.nbytes)

    def answered(self, client: int) -> bool:
        """Return whether the client has answered this task, with a valid reply or not."""
        return self._contract.answered(client)

    def calibrate(self, first: Sequence[Measured]) -> None:
        """Do nothing: there are no limits."""

    def admit(self, measured: Measured) -> Admitted | Rejection:
        """Admit a reply of which no part is longer than its clip; it counts once."""
        reply, bits = measured.reply, {}
        for name, vector in reply.vectors.items():
            length = length_of(vector)
            if not length <= 1 + ROUNDING:  # also if it is NaN
                reason = f"{name} beyond its clip"
                return Rejection(client=reply.client, reason=reason, nbytes=reply.nbytes)
            bits[BELOW + name] = float(uncut(length, vector.numel()))
        bare = replace(reply, metrics={}, seconds=0.0, received=reply.nbytes)
        return Admitted(reply=bare, weight=1, scalars=bits)

    def impossible(
        self, mean: Vectors, lr_sum: float, replies: int, delta_square: float
    ) -> str | None:
        """Return the name of a vector that cannot be the mean of admitted replies, if any."""
        return next((n for n, v in mean.items() if not length_of(v) <= 1 + 2 * ROUNDING), None)

    def bounded(self, r: Round, mean: Vectors) -> Round:
        """Return the scalars of the round unchanged."""
        return r

    def centre(self, mean: Vector, lr_sum: float) -> Vector | None:
        """Return None: a clip is around what the server knows."""
        return None
