r"""The guard's limits: what a reply must satisfy before it is added to the sum.

Every reply is admitted, admitted after being *limited*, or rejected with a reason; the round
continues in each case.  A reply is rejected if it is not the client's first answer to this task,
if its vectors do not match the contract (names, shapes, types), or if a number in it is not finite
or not possible.

A quantity that is too large is reduced to its limit, and a reply is rejected if any quantity
exceeds ``beyond`` times its limit.  The limit of a quantity q follows the recent replies:

.. math::
    q_\max = \tilde q \cdot \min\bigl(\max(\text{slack}, e^{\text{deviations}\cdot\sigma}),
             \text{widest}\bigr)^{1 + 4/n}

with :math:`\tilde q` the median of q over a round's replies, :math:`\sigma` the spread of log q
around it (1.4826 times the median absolute deviation), each the median over the last rounds, and
n the number of replies in them.  :math:`\tilde q` follows as many rounds as are needed for
``memory`` replies, and :math:`\sigma`, which hardly changes, ``LONG`` times as many; where
cohorts are small, the spread between rounds is added to it.  Fewer than
half of the replies cannot move the limit far.  If clients are similar, σ is small and ``slack``
decides.  If they differ, the limit widens by itself, up to ``widest``.  A quantity whose median
is 0 is limited to the size of rounding errors.

What is measured is what an honest client *can* do:

- Counts (steps, lr_sum and, if replies are weighted by them, examples) have a limit on both
  sides: the lower limit is the median divided by the factor of the upper one.  Without it, a client
  that claims almost no steps would remove its share from the divisor of g_a.  Most counts may be
  equal and a few much larger, so their σ is at least that of the 80 % quantile, their median
  follows as many replies as σ, and the power is 1 + 10/n.
- A delta is measured from the delta of a client with zero gradients and the same lr_sum
  (``Part.known``).  A client that trained longer may go further: its limit is
  multiplied by its lr_sum over the median, if that is above 1.
- A vector whose mean sets the direction of everybody's next steps (``Part.directions``: a shared
  momentum) is measured in the same way, and each of its tensors is limited to ``slack`` medians
  (to the power above), however much clients differ: few long ones would turn all clients round,
  where an honest one that is cut loses nothing but its length.
- A second moment is measured by its relative rise, :math:`\sum|\sqrt{\hat v_i}-\sqrt v| /
  \sum\sqrt v` with the v that was sent; here, too, a client that trained longer may go further.
  It must not fall below v (for AMSGrad; below 0 for Adam), and where it rose too far it is pulled
  back towards v on the scale of the root.  In round t the limit is ``rise`` times the median (or
  the limit above, for Adam) or ``records`` / t, whichever is more, and at most ``records``.
  A running maximum behaves like ``records`` / t: its records become rarer.  A constant share would
  let a patient attacker multiply v without end, since AMSGrad forgets nothing.
  No tensor may rise by more than ``TENSOR`` times the limit of the whole: otherwise all of the rise
  could be spent on one small layer.  (It may always rise to the mean of the whole: a layer that
  had no gradient so far starts from almost nothing.)
- What the server sums up over all rounds (SCAFFOLD's c, FedDyn's h) is limited in total: a client
  has a running account of how much its replies have lengthened the sum, and the account is
  limited like any other quantity.  With a limit on each reply only, small lies would add up.
- An averaged variance (a BatchNorm's ``running_var``) must not be negative.

``clip`` makes the guard a streaming form of centered clipping (Karimireddy, He and Jaggi 2021):
every delta is cut to ``clip`` times the median distance from the direction that all clients share
(``Part.known``), or else from the last mean delta per unit of lr_sum, and before that each of its
tensors is limited like any other quantity: otherwise an attacker could spend its whole allowed
distance on a few biases that honest clients hardly change.
That changes honest replies as well, so it is off by default and part of :meth:`Guard.strict`.

Limits follow from earlier rounds alone, so the order of arrival does not matter.  In the first
round they are set by the first ``calibration`` usable replies in the order of the cohort, not of
arrival; replies are held until then.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ...errors import require

__all__ = ["CENTRE", "COUNTS", "DELTA", "Guard", "History", "Limit", "Seen"]

COUNTS = ("steps", "lr_sum", "examples")
"""The quantities that are limited on both sides and hardly change from round to round."""

DELTA = "delta"

CENTRE = "centre"
"""The server's vector that deltas are clipped around: the last mean delta per unit of lr_sum."""

LONG = 10
"""The guard remembers quantities that hardly change this many times longer."""

Seen = tuple[float, float, int]
"""Statistics of one quantity in one round: median, spread and number of replies."""

History = dict[str, list[Seen]]
"""The statistics of each quantity in the last rounds."""


class Limit(NamedTuple):
    """The range in which a quantity is not limited, and the range in which it is not rejected."""

    low: float
    high: float
    least: float
    most: float

    def within(self, value: float) -> float:
        """Return the value, or the nearest end of the range if it is outside."""
        return min(max(value, self.low), self.high)


@dataclass(frozen=True, kw_only=True)
class Guard:
    """The settings of the guard."""

    slack: float = 2.0
    """A value up to ``slack`` times the median is never limited."""
    rise: float = 4.0
    """The factor on the median rise of a second moment, in which honest clients differ more."""
    records: float = 3.0
    """In round t a second moment may always rise by this share of itself, divided by t."""
    deviations: float = 6.0
    """A value within this many standard deviations on a log scale is not limited."""
    widest: float = 30.0
    """However much clients differ, a value this many times the median is limited."""
    beyond: float = 10.0
    """A reply is rejected if any quantity exceeds ``beyond`` times its limit."""
    memory: int = 10
    """Least number of replies that set the limits; it may take more than the last round."""
    calibration: int = 30
    """Number of replies, first in the cohort's order, that set the limits of the first round."""
    clip: float | None = None
    """Cut every delta to this many median distances from the last direction; None cuts none."""

    def __post_init__(self) -> None:
        for name in ("slack", "rise", "beyond"):
            value = getattr(self, name)
            require(value > 1, f"{name} is {value}; it must be above 1")
        require(self.deviations >= 0, f"deviations is {self.deviations}; it must be 0 or positive")
        require(
            self.widest >= self.slack,
            f"widest is {self.widest} and slack is {self.slack}; widest must be at least slack",
        )
        for name in ("memory", "calibration"):
            value = getattr(self, name)
            require(value >= 1, f"{name} is {value}; it must be at least 1")
        require(self.records >= 0, f"records is {self.records}; it must be 0 or positive")
        require(
            self.clip is None or self.clip > 0,
            f"clip is {self.clip}; it must be positive, or None",
        )

    @classmethod
    def strict(cls) -> Guard:
        """Return settings against colluding clients; they also change honest replies."""
        return cls(clip=1.0, widest=2.0, records=1.0)

    def remember(self, history: History, seen: Mapping[str, Sequence[float]]) -> History:
        """Return the history after a round in which these quantities were measured."""
        return {
            name: [*_recent([*history.get(name, []), _summary(name, values)], LONG * self.memory)]
            for name, values in seen.items()
        }

    def limits(
        self,
        history: History,
        *,
        moments: Mapping[str, bool] | None = None,
        directions: Collection[str] = (),
        updates: int = 0,
    ) -> dict[str, Limit]:
        """Return the limits of each quantity after ``updates`` rounds that changed the model.

        ``moments`` has the names of the second moments, and whether they never fall;
        ``directions`` those of the vectors whose mean sets the direction of everybody's steps.
        """
        limits = {
            name: self._limit(name, rounds, direction=name.partition("[")[0] in directions)
            for name, rounds in history.items()
        }
        for name, rising in (moments or {}).items():
            if name in limits:
                median, power = self._level(name, history[name])
                high = max(median * self.rise**power, 0.0 if rising else limits[name].high)
                if updates:  # in the first round, v rises from almost nothing
                    high = min(max(high, self.records / (updates + 1)), self.records)
                limits[name] = Limit(0.0, high, 0.0, high * self.beyond)
        return limits

    def _level(self, name: str, rounds: Sequence[Seen]) -> tuple[float, float]:
        """Return the median of a quantity, and the power that widens a factor on it."""
        few, recent = (10, rounds) if name in COUNTS else (4, _recent(rounds, self.memory))
        medians, _, counts = zip(*recent, strict=True)
        return statistics.median(medians), 1 + few / sum(counts)

    def _limit(self, name: str, rounds: Sequence[Seen], *, direction: bool) -> Limit:
        median, power = self._level(name, rounds)
        between = _spread([median for median, *_ in _recent(rounds, self.memory)])
        spread = math.hypot(between, statistics.median(spread for _, spread, _ in rounds))
        factor = max(self.slack, math.exp(min(self.deviations * spread, 300.0)))
        factor = min(factor, self.widest) ** power
        high = median * (self.slack**power if direction else factor)
        if self.clip is not None and (name == DELTA or (direction and "[" not in name)):
            high = median * self.clip
        low = median / factor if name in COUNTS else 0.0
        return Limit(low, high, low / self.beyond, median * factor * self.beyond)


def _recent(rounds: Sequence[Seen], least: int) -> Sequence[Seen]:
    """Return as many of the last rounds as are needed for ``least`` replies."""
    replies = 0
    for start in reversed(range(len(rounds))):
        replies += rounds[start][2]
        if replies >= least:
            return rounds[start:]
    return rounds


def _summary(name: str, values: Sequence[float]) -> Seen:
    spread = _spread(values)
    if name in COUNTS:
        high = sorted(values)[math.ceil(0.8 * len(values)) - 1]
        spread = max(spread, math.log(high / statistics.median(values)) / 0.8416)
    return statistics.median(values), spread, len(values)


def _spread(values: Sequence[float]) -> float:
    """Return a standard deviation of log values that is robust against fewer than half of them."""
    logs = [math.log(value) for value in values if value > 0]
    if not logs:
        return 0.0
    middle = statistics.median(logs)
    return 1.4826 * statistics.median(abs(log - middle) for log in logs)
