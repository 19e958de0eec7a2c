"""The account of a noise: its epsilon, by the library dp-accounting.

The unit that is protected is one record (an example, or a client).  Two data sets are neighbours if
they differ in one record, which is there or replaced by nothing.  dp-accounting composes the exact
distribution of the privacy loss (PLD), which asks for 6 to 8 % less noise than Renyi's bounds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

from ..errors import check_counts, missing_extra, require

__all__ = ["Event", "Sampled", "composed", "most_within"]

COARSE, FINE, RARE = 1e-3, 1e-4, 0.05
"""The width of the bins of the loss; with a rate below ``RARE`` it is fine, since losses are small.
Bins make epsilon larger, never smaller: by 2e-3 of itself or less for a noise of at most 8."""
PARTS, LEAST, GUESS = 1000, 300, 1000
"""Noises that are looked at are whole numbers of thousandths: above the least, and first this."""


class Event(NamedTuple):
    """A sum of clipped records with Gaussian noise; every record takes part by its own chance."""

    rate: float
    noise: float
    """In units of the clip."""


def composed(events: Mapping[Event, int], delta: float) -> float:
    """Return the epsilon of this number of each event together."""
    _check(delta)
    if any(not event.noise for event, count in events.items() if count):
        return math.inf
    total, interval = None, _interval(*(event.rate for event, count in events.items() if count))
    for event, count in events.items():
        if count:
            some = _loss(event, interval).self_compose(count)
            total = some if total is None else total.compose(some)
    return 0.0 if total is None else float(total.get_epsilon_for_delta(delta))


def most_within(
    epsilon: float, delta: float, spent: Mapping[Event, int], event: Event, most: int
) -> int:
    """Return how many more of an event, up to ``most``, stay within a budget."""

    def fits(count: int) -> bool:
        return composed({**spent, event: spent.get(event, 0) + count}, delta) <= epsilon

    if fits(most):
        return most
    fewest, beyond = -1, most  # the first number fits, the second does not
    while beyond - fewest > 1:
        middle = (fewest + beyond) // 2
        fewest, beyond = (middle, beyond) if fits(middle) else (fewest, middle)
    return max(fewest, 0)


@dataclass(frozen=True, kw_only=True)
class Sampled:
    """Sums of clipped records with Gaussian noise; every record takes part by its own chance."""

    rate: float
    """The chance of a record to be in one sum."""
    count: int
    """The number of sums that are released."""

    def __post_init__(self) -> None:
        require(0 < self.rate <= 1, f"rate is {self.rate}; it must be above 0 and at most 1")
        check_counts(self, "count")

    def epsilon(self, noise: float, delta: float) -> float:
        """Return the epsilon of all sums, for a noise in units of the clip."""
        require(
            noise > 0, f"noise is {noise}; it must be above 0: without noise nothing is private"
        )
        return composed({Event(self.rate, noise): self.count}, delta)

    def noise(self, epsilon: float, delta: float) -> float:
        """Return the least noise within a budget, in units of the clip, to three decimals."""
        require(epsilon > 0, f"epsilon is {epsilon}; it must be above 0")

        def fits(noise: int) -> bool:
            return self.epsilon(noise / PARTS, delta) <= epsilon

        low, high = LEAST, GUESS
        while not fits(high):
            low, high = high, 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if fits(middle) else (middle, high)
        return high / PARTS


def _check(delta: float) -> None:
    require(
        0 < delta < 1,
        f"delta is {delta}; it must be above 0 and below 1: well below one over the number of"
        " records, such as 1e-5",
    )


def _interval(*rates: float) -> float:
    return FINE if min(rates, default=1.0) < RARE else COARSE


@cache
def _loss(event: Event, interval: float) -> Any:
    """Return the distribution of the privacy loss of one event; most of the time goes here."""
    losses = _library().pld.privacy_loss_distribution
    return losses.from_gaussian_mechanism(
        standard_deviation=event.noise,
        value_discretization_interval=interval,
        sampling_prob=event.rate,
        neighboring_relation=_relation(),
    )


def _relation() -> Any:
    return _library().NeighboringRelation.REPLACE_SPECIAL


def _library() -> Any:
    try:
        import dp_accounting
        import dp_accounting.pld
    except ModuleNotFoundError as error:
        raise missing_extra(error, "an account of privacy", "fedlada[privacy]") from None
    return dp_accounting
