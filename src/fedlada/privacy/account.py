"""The account of a noise: its epsilon, by the library dp-accounting.

The unit that is protected is one record (an example, or a client).  Two data sets are neighbours if
they differ in one record, which is there or replaced by nothing.  dp-accounting composes the exact
distribution of the privacy loss (PLD), which asks for 6 to 8 % less noise than Renyi's bounds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..errors import check_counts, missing_extra, require

__all__ = ["Sampled"]

INTERVAL = 1e-3
"""The width of the bins of the loss: epsilon is off by less than 1e-5 of itself, in 0.2 s."""
LEAST, GUESS, WITHIN = 0.3, 1.0, 0.01
"""The least noise that is looked at, where to look first, and how exact the one found is."""


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
        accountant = _accountant().compose(self._event(noise))
        return float(accountant.get_epsilon(_checked(delta)))

    def noise(self, epsilon: float, delta: float) -> float:
        """Return a noise, in units of the clip, that is as small as this epsilon allows."""
        require(epsilon > 0, f"epsilon is {epsilon}; it must be above 0")
        dp = _library()
        bracket = dp.LowerEndpointAndGuess(LEAST, GUESS)
        found = dp.calibrate_dp_mechanism(
            _accountant, self._event, epsilon, _checked(delta), bracket, tol=WITHIN
        )
        return float(found)

    def _event(self, noise: float) -> Any:
        dp = _library()
        event = dp.PoissonSampledDpEvent(self.rate, dp.GaussianDpEvent(noise))
        return dp.SelfComposedDpEvent(event, self.count)


def _checked(delta: float) -> float:
    require(
        0 < delta < 1,
        f"delta is {delta}; it must be above 0 and below 1: well below one over the number of"
        " records, such as 1e-5",
    )
    return delta


def _accountant() -> Any:
    dp = _library()
    relation = dp.NeighboringRelation.REPLACE_SPECIAL
    return dp.pld.PLDAccountant(relation, value_discretization_interval=INTERVAL)


def _library() -> Any:
    try:
        import dp_accounting
        import dp_accounting.pld
    except ModuleNotFoundError as error:
        raise missing_extra(error, "an account of privacy", "fedlada[privacy]") from None
    return dp_accounting
