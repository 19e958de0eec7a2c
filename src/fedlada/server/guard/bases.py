"""Where vectors are measured from: what a client without any gradient would send."""

from __future__ import annotations

from collections.abc import Sequence

from ...algorithms import Algorithm, Vector
from ...protocol.federated import BUFFERS
from ...protocol.messages import Task
from .limits import DELTA

__all__ = ["Bases"]


class Bases:
    """A delta is measured from coasting, averaged buffers from those sent, all else from zero."""

    def __init__(self, algorithm: Algorithm, task: Task, lacking: Vector | None) -> None:
        """Start a round in which deltas lack so much per unit of their lr_sum, or nothing."""
        self._lacking, self._span = lacking, algorithm.span
        coasting = algorithm.part.coasting(task.vectors, 1.0) if lacking is None else lacking
        self._coasting, self._buffers = coasting, task.vectors.get(BUFFERS)

    def distance(self, name: str, vector: Vector, lr_sum: float, *, whole: bool = False) -> float:
        """Return how far a vector is from its base; ``whole`` is for a delta that lacks nothing."""
        if name == DELTA and self._coasting is not None and (whole or self._lacking is None):
            return vector.distance(self._coasting, alpha=self._span(lr_sum))
        if name == BUFFERS and self._buffers is not None and len(self._buffers):
            return vector.distance(self._buffers)
        return vector.norm()

    def by_tensor(self, delta: Vector, lr_sum: float) -> list[float]:
        """Return how far each tensor of a delta is from its base."""
        if self._coasting is not None and self._lacking is None:
            return delta.distances(self._coasting, alpha=self._span(lr_sum))
        return [Vector([t]).norm() for t in delta]

    def shortened(
        self, name: str, vector: Vector, left: float, lr_sum: float, tensors: Sequence[float] = ()
    ) -> Vector:
        """Return a vector whose distance is multiplied by ``left``, and those of its tensors.

        1 changes no bit.
        """
        factors = [left * own for own in tensors] or [left] * len(vector)
        if all(factor == 1 for factor in factors):
            return vector
        if name == DELTA and self._coasting is not None and self._lacking is None:
            base = self._coasting * self._span(lr_sum)
        elif name == BUFFERS and self._buffers is not None:
            base = self._buffers
        else:
            return Vector(t * factor for t, factor in zip(vector, factors, strict=True))
        parts = zip(vector, base, factors, strict=True)
        return Vector(((t - b) * factor).add_(b) for t, b, factor in parts)

    def completed(self, delta: Vector, lr_sum: float) -> Vector:
        """Return a delta with what it lacks."""
        if self._lacking is None:
            return delta
        return delta.add(self._lacking, alpha=self._span(lr_sum))

    def too_long(self, square: float, limit: float, lr_sum: float) -> bool:
        """Return whether no deltas within a limit have this mean square of their norms."""
        coasted = 0.0 if self._coasting is None else self._coasting.norm() * self._span(lr_sum)
        longest = limit + coasted
        return not square <= longest * longest
