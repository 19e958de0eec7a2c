r"""The guard: what a reply must be before it touches the sum.

Every reply is either admitted, admitted after being *limited*, or turned away with a reason; the
round goes on either way.  It is turned away if it is not the client's first answer to this very
task, if its vectors are not those of the contract (names, shapes, types), or if a number in it is
not finite or not possible.

What is merely too large is brought down to a limit, and what is ``beyond`` times larger than that
is turned away as well.  The limit of a quantity q (the length of a vector, a weight, a number of
steps) follows what replies have looked like of late:

.. math::
    q_\max = \tilde q \cdot \max(\text{slack},\; e^{\text{deviations}\cdot\sigma})^{1 + 4/n}

with :math:`\tilde q` the median of q over a round's replies, :math:`\sigma` the spread of log q
around it (1.4826 times the median absolute deviation) and n the number of replies, each the median
over as many of the last rounds as have ``memory`` replies between them.  Less than half of the
replies cannot move it far.  Where clients take equally many steps σ is small and ``slack``
decides, little more than what an honest client could do anyway; where they do not, the limit
widens by itself, and so it does where few replies say little.

A delta is measured from where a client without any gradient would be (``Part.coasting``): where
the last round's direction g_a is mixed into every step, what a liar put into it would else lengthen
everybody's delta in the next round, and the limit with it.

A second moment is measured as :math:`\sum|\sqrt{\hat v_i}-\sqrt v|` from the v that was sent: it
must not fall below v (for AMSGrad; below 0 for Adam) and is pulled back to v, on the scale of the
root, if it rose too far.  This is what protects a shared v from one client that sends a huge one,
which AMSGrad's maximum would never forget.  ``largest_gradient`` adds the box
:math:`\hat v_i \le \max(v, C^2)`; no C is safe to assume, since honest v̂ of one model differ by
many decades, so it is off by default.

Limits follow from earlier rounds alone, so the order of arrival does not matter.  In the first
round, before anything is known, they are set by the first ``calibration`` usable replies in the
order of the cohort, not of arrival; whatever comes earlier is held until these are there.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from ...errors import require

__all__ = ["Guard", "History", "Seen"]

Seen = tuple[float, float, int]
"""Of one quantity in one round: median, spread, and number of replies."""

History = dict[str, list[Seen]]
"""Of each quantity, the last rounds."""


@dataclass(frozen=True, kw_only=True)
class Guard:
    """The limits of what is admitted."""

    slack: float = 2.0
    """What is at most so many times the median is never limited."""
    rise: float = 3.0
    """The same for how far a second moment rose: honest clients differ more in that."""
    deviations: float = 6.0
    """Nor what is within so many standard deviations of it, on a logarithmic scale."""
    beyond: float = 10.0
    """A reply with something more than so many times its limit is turned away."""
    memory: int = 10
    """How many replies, at least, set the limits: those of the last round, or of more."""
    calibration: int = 5
    """How many replies, first in the order of the cohort, set the limits of the first round."""
    largest_gradient: float | None = None
    """C of the box around second moments, if it is known."""

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
        """The history after a round in which these quantities were admitted."""
        return {
            name: self._recent([*history.get(name, []), _summary(values)])
            for name, values in seen.items()
        }

    def limits(self, history: History, rises: Collection[str] = ()) -> dict[str, float]:
        """The largest that is left alone, of each quantity; ``rises`` are second moments."""
        return {name: self._limit(rounds, name in rises) for name, rounds in history.items()}

    def _recent(self, rounds: Sequence[Seen]) -> list[Seen]:
        """The last rounds, as many as it takes."""
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
        # Some clients raise v by nothing at all, so the spread of a rise says nothing.
        width = math.log(self.rise) if rise else math.log(self.slack)
        width = max(width, 0.0 if rise else self.deviations * spread) * (1 + 4 / count)
        return float(median * math.exp(min(width, 300.0)))


def _summary(values: Sequence[float]) -> Seen:
    return statistics.median(values), _spread(values), len(values)


def _spread(values: Sequence[float]) -> float:
    """A standard deviation of the logarithm that less than half of the values cannot move far."""
    logs = [math.log(value) for value in values if value > 0]
    if not logs:
        return 0.0
    middle = statistics.median(logs)
    return 1.4826 * statistics.median(abs(log - middle) for log in logs)
