r"""The guard's limits: what a reply must satisfy before it is added to the sum.

Every reply is admitted, admitted after being *limited*, or rejected with a reason; the round goes
on either way.  A reply is rejected if it is not the client's first answer to this task, if its
vectors do not match the contract (names, shapes, types), or if a number in it is not finite or
not possible.

A quantity that is too large is reduced to its limit, and a reply is rejected if any quantity
exceeds ``beyond`` times its limit.  The limit of a quantity q (the length of a vector, a weight, a
number of steps) follows the recent replies:

.. math::
    q_\max = \tilde q \cdot \max(\text{slack},\; e^{\text{deviations}\cdot\sigma})^{1 + 4/n}

with :math:`\tilde q` the median of q over a round's replies, :math:`\sigma` the spread of log q
around it (1.4826 times the median absolute deviation) and n the number of replies.  Each of the
three is the median over the last rounds, as many as are needed for ``memory`` replies.  Fewer than
half of the replies cannot move the limit far.  Where clients take equally many steps, σ is small
and ``slack`` decides, which allows little more than what an honest client could do anyway.  Where
they do not, the limit widens by itself, as it does where there are few replies.

A delta is measured from the delta of a client without any gradient (``Part.coasting``).  Some
algorithms mix the last round's direction g_a into every step: otherwise one false reply would
lengthen every client's delta in the next round, and the limit with it.

A second moment is measured as :math:`\sum|\sqrt{\hat v_i}-\sqrt v|` from the v that was sent.  It
must not fall below v (for AMSGrad; below 0 for Adam), and if it rose too far it is pulled back
towards v on the scale of the root.  This protects a shared v from a client that sends a huge one,
which AMSGrad's maximum would never forget.  ``largest_gradient`` adds the box
:math:`\hat v_i \le \max(v, C^2)`; no C is safe to assume, since honest v̂ of one model differ by
many orders of magnitude, so it is off by default.

Limits follow from earlier rounds alone, so the order of arrival does not matter.  In the first
round they are set by the first ``calibration`` usable replies in the order of the cohort, not of
arrival; replies that arrive earlier are held until then.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from ...errors import require

__all__ = ["Guard", "History", "Seen"]

Seen = tuple[float, float, int]
"""Statistics of one quantity in one round: median, spread and number of replies."""

History = dict[str, list[Seen]]
"""The statistics of each quantity in the last rounds."""


@dataclass(frozen=True, kw_only=True)
class Guard:
    """The settings of the guard."""

    slack: float = 2.0
    """A value up to ``slack`` times the median is never limited."""
    rise: float = 3.0
    """The same factor for the rise of a second moment, in which honest clients differ more."""
    deviations: float = 6.0
    """A value within this many standard deviations on a log scale is never limited."""
    beyond: float = 10.0
    """A reply is rejected if any quantity exceeds ``beyond`` times its limit."""
    memory: int = 10
    """Least number of replies that set the limits; it may take more than the last round."""
    calibration: int = 5
    """Number of replies, first in the cohort's order, that set the limits of the first round."""
    largest_gradient: float | None = None
    """The bound C of the box around second moments, if it is known."""

    def __post_init__(self) -> None:
        for name in ("slack", "rise", "beyond"):
            value = getattr(self, name)
            require(value > 1, f"{name} is {value}; it must be above 1")
        require(self.deviations >= 0, f"deviations is {self.deviations}; it must be 0 or positive")
        for name in ("memory", "calibration"):
            value = getattr(self, name)
            require(value >= 1, f"{name} is {value}; it must be at least 1")
        require(
            self.largest_gradient is None or self.largest_gradient > 0,
            f"largest_gradient is {self.largest_gradient}; it must be positive, or None",
        )

    def remember(self, history: History, seen: Mapping[str, Sequence[float]]) -> History:
        """Return the history after a round in which these quantities were measured."""
        return {
            name: self._recent([*history.get(name, []), _summary(values)])
            for name, values in seen.items()
        }

    def limits(self, history: History, rises: Collection[str] = ()) -> dict[str, float]:
        """Return the limit of each quantity; ``rises`` names the second moments."""
        return {name: self._limit(rounds, name in rises) for name, rounds in history.items()}

    def _recent(self, rounds: Sequence[Seen]) -> list[Seen]:
        """Return the last rounds, as many as are needed for ``memory`` replies."""
        recent: list[Seen] = []
        for seen in reversed(rounds):
            recent.insert(0, seen)
            if sum(count for *_, count in recent) >= self.memory:
                break
        return recent

    def _limit(self, rounds: Sequence[Seen], rise: bool) -> float:
        median, spread, count = (statistics.median(column) for column in zip(*rounds, strict=True))
        if median == 0:
            return math.inf if not rise else 0.0
        # Some clients do not raise v at all, so the spread of a rise is meaningless.
        width = math.log(self.rise) if rise else math.log(self.slack)
        width = max(width, 0.0 if rise else self.deviations * spread) * (1 + 4 / count)
        return float(median * math.exp(min(width, 300.0)))


def _summary(values: Sequence[float]) -> Seen:
    return statistics.median(values), _spread(values), len(values)


def _spread(values: Sequence[float]) -> float:
    """Return a standard deviation of log values that is robust against fewer than half of them."""
    logs = [math.log(value) for value in values if value > 0]
    if not logs:
        return 0.0
    middle = statistics.median(logs)
    return 1.4826 * statistics.median(abs(log - middle) for log in logs)
