"""Aggregators on which a minority of replies has bounded influence; they hold all replies.

For replies x_1 ... x_n, each named vector is aggregated by itself (scalars by their median):

- TrimmedMean: per coordinate, with x_(1) <= ... <= x_(n) and k = ceil(trim · n), the mean of
  x_(k+1) ... x_(n-k); it withstands k replies.  CoordinateMedian: the middle one, or the mean of
  the middle two; it withstands fewer than n / 2.  (Yin et al. 2018, arXiv:1803.01498.)
- CenteredClipping: v <- v + mean_i (x_i - v) · min(1, radius / ||x_i - v||), repeated (Karimireddy,
  He and Jaggi 2021, "Learning from History for Byzantine Robust Optimization").  Deviations: v
  starts at the median, not at the previous aggregate, so rounds share no state; and the radius is
  by default the median distance, so fewer than n / 2 replies move v by a bounded distance only.

None of these is the mean: where honest clients differ, each is biased towards the majority.  The
cost in memory is cohort × (all up vectors), against 8 to 16 bytes per element for ``Mean``.
CenteredClipping needs about 16 bytes per element more, and 50 per element of the largest tensor.
The server must see single replies, which excludes secure aggregation; in an aggregation tree all
replies travel to the root.

The library byzfl is not used here because it requires torchvision, matplotlib and seaborn, and
works on one flat vector.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from statistics import median
from typing import Any, cast

import torch
from torch import Tensor

from ...algorithms import Vector, Vectors
from ...devices import block_of
from ...errors import FedladaError, require
from ...named import by_name
from .held import Held, Rule
from .mean import Mean

__all__ = [
    "AGGREGATORS",
    "CenteredClipping",
    "CoordinateMedian",
    "TrimmedMean",
    "aggregator_table",
]


@dataclass(frozen=True, kw_only=True)
class TrimmedMean(Rule):
    """The mean of each coordinate without its ``ceil(trim * n)`` smallest and largest values."""

    name = "trimmed-mean"

    trim: float = 0.1
    """The share of the values that is left out at each end."""

    def __post_init__(self) -> None:
        require(0 <= self.trim < 0.5, f"trim is {self.trim}; it must be at least 0 and below 0.5")

    @property
    def least(self) -> int:
        n = math.ceil(2 / (1 - 2 * Fraction(str(self.trim))))  # 2 * (trim * n + 1) <= n
        while n > 1 and self.combines(n - 1):
            n -= 1
        return n

    def combines(self, count: int) -> bool:
        """Return whether replies are left after the cut; some numbers below ``least`` work, too."""
        return 2 * self._cut(count) < count

    def combine(self, replies: Sequence[Vector]) -> Vector:
        n, cut = len(replies), self._cut(len(replies))
        advice = f"lower it, or let a round need minimum={self.least} replies"
        require(
            self.combines(n),
            f"trim is {self.trim}, which cuts {cut} replies off each end of {n} and leaves none:"
            f" {advice}",
        )
        return _middle(replies, cut)

    def _cut(self, n: int) -> int:
        """Return how many of n are cut off each end."""
        # As an exact decimal: 0.07 of 100 is 7, in floats slightly more.
        return math.ceil(Fraction(str(self.trim)) * n)


@dataclass(frozen=True, kw_only=True)
class CoordinateMedian(Rule):
    """The median of each coordinate."""

    name = "coordinate-median"

    def combine(self, replies: Sequence[Vector]) -> Vector:
        return _middle(replies, (len(replies) - 1) // 2)


@dataclass(frozen=True, kw_only=True)
class CenteredClipping(Rule):
    """The mean of the replies, each clipped to a ball around the aggregate so far."""

    name = "centered-clipping"

    radius: float | None = None
    """One radius for all vectors; None takes the median distance per vector and iteration."""
    iterations: int = 3
    """Number of times that the aggregate is computed, each time around the last."""

    def __post_init__(self) -> None:
        valid = self.radius is None or self.radius > 0
        require(valid, f"radius is {self.radius}; it must be positive, or None: median distance")
        require(self.iterations >= 1, f"iterations is {self.iterations}; it must be at least 1")

    def combine(self, replies: Sequence[Vector]) -> Vector:
        v = Vector(t.double() for t in CoordinateMedian().combine(replies))
        for _ in range(self.iterations):
            distances = [math.hypot(*map(_distance, x, v)) for x in replies]
            radius = median(distances) if self.radius is None else self.radius
            scales = [1.0 if d <= radius else radius / d for d in distances]
            v = Vector(_step(t, ts, scales) for t, *ts in zip(v, *replies, strict=True))
        return Vector(t.to(like.dtype) for t, like in zip(v, replies[0], strict=True))


def _middle(replies: Sequence[Vector], cut: int) -> Vector:
    """Return, per coordinate, the mean without the ``cut`` smallest and largest values."""
    contiguous = torch.contiguous_format
    result = Vector(torch.empty_like(t, memory_format=contiguous) for t in replies[0])
    for ts in zip(result, *replies, strict=True):
        size = block_of(ts[0].device)
        for out, *rows in zip(*(torch.split(t.reshape(-1), size) for t in ts), strict=True):
            # Adding 0 turns -0 into 0: sorting would leave the two in the order of arrival.
            kept = torch.stack(rows).add_(0).sort(0).values[cut : len(rows) - cut]
            # A rounded mean can lie outside the range of its terms, even if they are all equal.
            out.copy_(kept.mean(0, dtype=torch.float64).clamp_(kept[0], kept[-1]))
    return result.to(replies[0])


def _distance(t: Tensor, v: Tensor) -> float:
    return float(torch.linalg.vector_norm((t - v).flatten()))


def _step(v: Tensor, ts: Sequence[Tensor], scales: Sequence[float]) -> Tensor:
    mean = Mean()
    for t, scale in zip(ts, scales, strict=True):
        mean.fold(Vectors(step=Vector([(t - v).mul_(scale)])))
    return mean.vectors().step.tensors[0].add_(v)


AGGREGATORS: dict[str, Callable[[], Mean | Held]] = {
    "mean": Mean,
    **{name: rule() for name, rule in by_name(globals(), Rule).items()},  # type: ignore[type-abstract]
}
"""The aggregators by name, with default settings."""


def aggregator_table(aggregator: Callable[[], object]) -> dict[str, Any]:
    """Return the name and the settings of an aggregator of this library, for ``Plan.of``."""
    for name, known in AGGREGATORS.items():
        if aggregator is known:
            return {"name": name}
        if isinstance(known, Rule) and isinstance(aggregator, type(known)):
            return {"name": name, **asdict(cast(Any, aggregator))}
    raise FedladaError(
        f"the aggregator is {aggregator}, and leaves know only {', '.join(AGGREGATORS)}; choose one"
        " of these, or let each node be one client"
    )
