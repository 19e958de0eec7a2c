"""Where vectors are measured from: what a client without any gradient would send."""

from __future__ import annotations

from ...algorithms import Algorithm, Vector
from ...protocol.federated import BUFFERS
from ...protocol.messages import Task
from .limits import DELTA

__all__ = ["Bases"]


class Bases:
    """A delta is measured from coasting, averaged buffers from those sent, all else from zero."""

    def __init__(self, algorithm: Algorithm, task: Task, lacking: Vector | None) -> None:
        """Start a round in which deltas lack so much per unit of their lr_sum, or nothing."""
        self._lacking = lacking
        coasting = algorithm.part.coasting(task.vectors, 1.0) if lacking is None else lacking
        self._coasting, self._buffers = coasting, task.vectors.get(BUFFERS)

    def distance(self, name: str, vector: Vector, lr_sum: float, *, whole: bool = False) -> float:
        """Return how far a vector is from its base; ``whole`` is for a delta that lacks nothing."""
        if name == DELTA and self._coasting is not None and (whole or self._lacking is None):
            return vector.distance(self._coasting, alpha=lr_sum)
        if name == BUFFERS and self._buffers is not None and len(self._buffers):
            return vector.distance(self._buffers)
        return vector.norm()

    def shortened(self, name: str, vector: Vector, left: float, lr_sum: float) -> Vector:
        """Return a vector whose distance is multiplied by ``left``; 1 changes no bit of it."""
        if left == 1:
            return vector
        if name == DELTA and self._coasting is not None and self._lacking is None:
            base = self._coasting * lr_sum
        elif name == BUFFERS and self._buffers is not None:
            base = self._buffers
        else:
            return vector * left
        return ((vector - base) * left).add_(base)

    def completed(self, delta: Vector, lr_sum: float) -> Vector:
        """Return a delta with what it lacks."""
        return delta if self._lacking is None else delta.add(self._lacking, alpha=lr_sum)
