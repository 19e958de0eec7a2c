r"""The settings of a private run: what one client can change, and how much noise hides it.

A reply is cut into parts, one for each ``up`` vector.  Part k is at most as long as its clip C_k
and has a share s_k of the budget.  The joint vector of all parts, each multiplied by
:math:`\sqrt{s_k} / C_k`, is at most 1 long, so Gaussian noise of standard deviation z on every
coordinate of its sum is one event with the noise multiplier z, however many parts there are.

Clips follow the replies (Andrew et al., "Differentially Private Learning with Adaptive Clipping",
2021): each client says by one bit for each part whether it was below its clip.  The sum of these
bits has noise, too, and the noise of the parts is made larger so that all is one event of z:

.. math:: z_\text{parts} = \bigl(z^{-2} - n / (2 \sigma)^2\bigr)^{-1/2}

with n parts and :math:`\sigma` the noise of a sum of bits, which are counted from ½.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Real

from ..algorithms import Algorithm
from ..algorithms.vectors import is_small
from ..errors import check_counts, require, require_known

__all__ = ["Privacy"]

RATE = 0.2
"""How fast clips follow: a share of clients that is off by all changes a clip by this, in logs."""
COUNTING = 20
"""The noise of a sum of bits is the size of a cohort divided by this."""
MOMENT, SUM, OTHER = 0.1, 0.5, 0.3
"""The shares of second moments, of what the server sums up, and of other vectors beside delta."""
LEAST = 0.2
"""The least share of delta, unless ``shares`` says otherwise."""


@dataclass(frozen=True, kw_only=True)
class Privacy:
    """Privacy of whole clients by noise on the server (``Plan.privacy``)."""

    noise: float
    """Standard deviation of the noise, in units of the clip; ``fedlada privacy`` prints it."""
    delta: float
    """The chance that epsilon does not hold: below one over the number of clients."""
    epsilon: float | None = None
    """The budget: the run ends before a round that would exceed it.  None only counts."""
    clip: float | Mapping[str, float] = 0.1
    """The greatest length of a part in the first round; one for all, or by vector."""
    quantile: float | None = 0.5
    """The share of clients whose parts are shorter than the clip, which clips then follow; None
    leaves clips as they are."""
    shares: Mapping[str, float] = field(default_factory=dict)
    """The share of the budget of each vector; delta has the rest."""
    steps: int = 50
    """Number of local steps that the server assumes of every client; clients do not send theirs."""
    cohort: float | None = None
    """What sums are divided by; None is the expected number of clients in a round."""
    seeded: bool = False
    """Whether cohorts and noise follow from the plan's seed, so that the run can be repeated.
    Every client could then compute them: such a run measures accuracy and protects nobody."""

    def __post_init__(self) -> None:
        for name in ("epsilon", "quantile", "cohort"):  # a file cannot express None
            object.__setattr__(self, name, getattr(self, name) or None)
        for name in ("noise", "delta", "epsilon", "quantile", "cohort"):
            value = getattr(self, name)
            known = isinstance(value, Real) and not isinstance(value, bool)
            require(
                value is None or (known and math.isfinite(value)),
                f"{name} of privacy is {value!r}; it must be a number",
            )
        require(
            self.noise > 0 or (self.noise == 0 and self.seeded),
            f"noise is {self.noise}; without noise nothing is private: ask fedlada privacy for"
            " the noise of your budget (seeded=True allows 0, to measure a run without noise)",
        )
        require(
            0 < self.delta < 1,
            f"delta is {self.delta}; it must be above 0 and below one over the number N of"
            " clients, such as 1e-5 or 1/N^1.1",
        )
        require(
            self.epsilon is None or self.epsilon > 0,
            f"epsilon is {self.epsilon}; it must be positive, or None to count alone",
        )
        require(
            self.quantile is None or 0 < self.quantile < 1,
            f"quantile is {self.quantile}; it must be between 0 and 1, or None for fixed clips",
        )
        require(
            self.cohort is None or self.cohort > 0,
            f"cohort of privacy is {self.cohort}; it must be positive, or None for the expected"
            " number of clients in a round",
        )
        for name, clip in self._clips().items():
            require(clip > 0, f"clip of {name} is {clip}; it must be positive")
        check_counts(self, "steps")

    def _clips(self) -> Mapping[str, float]:
        return self.clip if isinstance(self.clip, Mapping) else {"all": self.clip}

    def clips(self, algorithm: Algorithm) -> dict[str, float]:
        """Return the first clip of each ``up`` vector."""
        if not isinstance(self.clip, Mapping):
            return dict.fromkeys(algorithm.up, float(self.clip))
        _check_names(self.clip, algorithm, "clip")
        missing = [name for name in algorithm.up if name not in self.clip]
        require(not missing, f"clip has no length for {', '.join(missing)}; give all, or a number")
        return {name: float(self.clip[name]) for name in algorithm.up}

    def shares_of(self, algorithm: Algorithm) -> dict[str, float]:
        """Return the share of the budget of each ``up`` vector; their sum is 1."""
        _check_names(self.shares, algorithm, "shares")
        moments, sums = ({each.up for each in of} for of in (algorithm.moments, algorithm.sums))

        def usual(name: str) -> float:
            return MOMENT if name in moments or is_small(name) else SUM if name in sums else OTHER

        shares = {name: usual(name) for name in algorithm.up if name != "delta"}
        too_much = max(1.0, sum(shares.values()) / (1 - LEAST))
        shares = {name: share / too_much for name, share in shares.items()}
        shares |= {n: float(share) for n, share in self.shares.items() if n != "delta"}
        rest = 1 - math.fsum(shares.values())
        given = self.shares.get("delta", rest)
        require(
            all(share > 0 for share in (rest, *shares.values())) and math.isclose(given, rest),
            f"shares are {dict(shares)}, which leaves {rest:.3g} for delta"
            f"{f', not {given:g}' if given != rest else ''}; all must be positive, with a sum of 1",
        )
        return {name: shares.get(name, rest) for name in algorithm.up}

    def expected(self, rate: float, clients: int) -> float:
        """Return what sums are divided by."""
        return self.cohort or rate * clients

    def noises(self, parts: int, expected: float) -> tuple[float, float]:
        """Return the noise of the joint vector and that of a sum of bits."""
        if self.quantile is None or not self.noise:
            return self.noise, 0.0
        counting = expected / COUNTING
        left = self.noise**-2 - parts / (2 * counting) ** 2
        require(
            left > 0,
            f"a round has {expected:g} clients, too few to let clips follow them with noise"
            f" {self.noise:g}: give quantile = 0 and a clip, or sample more clients",
        )
        return left**-0.5, counting

    def next_clip(self, clip: float, below: float) -> float:
        """Return the clip of the next round, after this share of clients was below it."""
        if self.quantile is None:
            return clip
        return clip * math.exp(-RATE * (min(max(below, 0.0), 1.0) - self.quantile))


def _check_names(given: Mapping[str, float], algorithm: Algorithm, what: str) -> None:
    names: Sequence[str] = algorithm.up
    for name in given:
        require_known(name, names, f"{what} has {name!r}, which is not sent")
