"""A weighted mean that does not depend on the order, or the tree, in which terms are added.

Each coordinate is summed without error as a pair of float64 numbers, the rounded sum and the
rounding error (Knuth's two-sum), and rounded once at the end.  Over float32 terms the pair is
exact while the terms of one coordinate lie within 2^58 of one another, so it is the same in any
order and any tree.  Beyond that, and over float64 terms, its error is below 2^-100 of the largest
term, which almost never changes the rounded result.  Scalars and weights are summed exactly, as
fractions.

Two things make it fast and change no bit.  A sum that the processor did not round
(:mod:`.exact_sum`) has no error to compute.  And terms are held back until there are a few, so that
the sums, which are larger than any cache, are read and written once for all of them.

Memory does not depend on the number of terms: it is 8 bytes per element, 16 after the first
rounding error, and the terms that are held back.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Any, ClassVar

from torch import Tensor

from ...algorithms import Vector, Vectors
from ...errors import require
from ...protocol.codecs import MalformedReply
from ...protocol.strict import Tensors, integer, table
from .exact_scalars import ExactMeans
from .exact_sum import HIGH, LOW, ExactSum

__all__ = ["Mean"]

TOGETHER = 4
"""Number of terms to hold back before adding them."""


class Mean:
    """The weighted mean of named vectors and scalars; terms are folded in or merged."""

    is_mean: ClassVar[bool] = True
    weighted: ClassVar[bool] = True
    least: ClassVar[int] = 1

    def __init__(self) -> None:
        self.count = 0
        self._totals: dict[str, ExactSum] = {}
        self._held: list[tuple[Vectors, float]] = []
        self._scalars = ExactMeans()

    def fold(
        self, vectors: Vectors, *, weight: float = 1, scalars: Mapping[str, float] | None = None
    ) -> None:
        """Add one term; its tensors must stay as they are, since it may be held back."""
        require(
            math.isfinite(weight) and weight > 0,
            f"weight is {weight}; it must be positive and finite",
        )
        if not self.count:
            self._totals = {name: ExactSum(vector) for name, vector in vectors.items()}
        self._alike(vectors)
        for name, vector in vectors.items():
            self._totals[name].check(vector)
        self._held.append((Vectors(vectors), weight))
        if len(self._held) == TOGETHER:
            self._add_held()
        self._scalars.fold(scalars or {}, weight)
        self.count += 1

    def combines(self, count: int) -> bool:
        """Return whether this number of terms has a mean: one is enough."""
        return count >= self.least

    def merge(self, other: Mean) -> None:
        """Add all the terms of another mean."""
        if not other.count:
            return
        if not self.count:
            self._totals = {name: total.empty() for name, total in other._sums.items()}
        self._alike(other._sums)
        for name, total in other._sums.items():
            self._sums[name].merge(total)
        self._scalars.merge(other._scalars)
        self.count += other.count

    def vectors(self) -> Vectors:
        """Return the mean of each vector, rounded once to the terms' type."""
        self._some()
        weight = float(self.weight)
        return Vectors((name, total.over(weight)) for name, total in self._sums.items())

    def sums(self) -> Vectors:
        """Return the sum of each vector in float64."""
        return Vectors((name, total.exact()) for name, total in self._sums.items())

    def scalars(self) -> dict[str, float]:
        """Return the mean of each scalar over the terms that had it; NaN if one was not finite."""
        self._some()
        return self._scalars.means()

    def written(self) -> tuple[dict[str, Any], dict[str, list[Tensor]]]:
        """Return the sums so far as plain values and tensors, which are not copied if dense."""
        header = {"count": self.count, "scalars": self._scalars.written()}
        tensors: dict[str, list[Tensor]] = {}
        for name, total in self._sums.items():
            tensors |= total.written(name)
        return header, tensors

    def read(
        self, header: object, tensors: Tensors, like: Mapping[str, Vector], *, most: int
    ) -> None:
        """Become what was written: at most ``most`` terms of the types and shapes of ``like``."""
        values = table(header, {"count", "scalars"})
        self.count = integer(values["count"], most=most)
        names = like if self.count else {}
        needed = {f"{HIGH}:{name}" for name in names}
        if not needed <= tensors.keys() <= needed | {f"{LOW}:{name}" for name in names}:
            raise MalformedReply("wrong vectors of a tally")
        self._scalars = ExactMeans.read(values["scalars"])
        if (self.weight > 0) != (self.count > 0):
            raise MalformedReply("wrong weights of a tally")
        self._totals = {name: ExactSum.read(tensors, name, like[name]) for name in names}

    @property
    def weight(self) -> Fraction:
        """The sum of the weights."""
        return self._scalars.weight

    @property
    def _sums(self) -> dict[str, ExactSum]:
        """The sums of all terms."""
        self._add_held()
        return self._totals

    def _add_held(self) -> None:
        terms, self._held = self._held, []
        for name, total in self._totals.items():
            total.add([(vectors[name], weight) for vectors, weight in terms])

    def _alike(self, names: Mapping[str, object]) -> None:
        require(
            set(names) == set(self._totals),
            f"a term has the vectors {', '.join(names)}; this mean is over"
            f" {', '.join(self._totals)}",
        )

    def _some(self) -> None:
        require(self.count > 0, "a mean of nothing: fold or merge at least one term first")
