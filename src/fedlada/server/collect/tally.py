"""The tally of a cohort's replies: sums, counts, metrics and the guard's measurements.

A tally is *mergeable*: a cohort may be split over several collectors, and merging their tallies in
any order gives the same bits as one collector.  In the first round, without any history, the first
``calibration`` usable replies in the order of the cohort set the guard's limits, whenever they
arrive; other replies are held until then.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from ...algorithms import Vector, Vectors
from ...errors import require
from ...protocol.messages import Failure, Rejection, Reply, well_named
from ..aggregate.mean import Mean
from ..guard import Admission, Measured, NoGuard, judged
from ..private.admission import Private
from .by_version import ByVersion

__all__ = ["NORM", "Aggregator", "Tally"]

NORM = "norm²"
"""The scalar of a reply that is the square of its delta's norm."""

LONGEST = 1e9
"""Largest number of seconds that a client can claim, about 30 years: sums stay finite."""


class Aggregator(Protocol):
    """Combines accepted replies into one: a mean, or a more robust aggregate.

    Some members are optional.  With ``merge(other)`` several collectors can share a cohort.
    ``combines(count)`` returns whether it can combine this number of replies, and ``least`` is the
    number from which it always can; a round with fewer replies is abandoned.  ``weighted = False``
    says that it takes no weights; then a plan with weighted replies is refused.
    """

    count: int

    @property
    def is_mean(self) -> bool:
        """Whether the result is the weighted mean of the replies."""
        ...

    def fold(
        self, vectors: Vectors, *, weight: float = 1, scalars: Mapping[str, float] | None = None
    ) -> None:
        """Add one reply."""
        ...

    def vectors(self) -> Vectors:
        """Return the combined vectors."""
        ...

    def scalars(self) -> dict[str, float]:
        """Return the combined scalars."""
        ...


class Tally:
    """The replies of a cohort, or of a share of it, so far."""

    def __init__(
        self,
        total: Aggregator,
        cohort: Sequence[int],
        admission: Admission | NoGuard | Private | ByVersion,
        *,
        summed: Collection[str] = (),
    ) -> None:
        """Start empty; ``cohort`` is the round's whole cohort in order, even for a share.

        ``summed`` are vectors that the server sums up over all rounds; where replies weigh less if
        they are late, these are averaged without weights, or the sum would miss a part of each.
        """
        self.total, self.cohort, self.admission = total, cohort, admission
        self.summed, self.whole = frozenset(summed), Mean()
        self.accepted: list[int] = []
        self.failures, self.rejected = Counter[str](), Counter[str]()
        self.limited = Counter[str]()
        self.incidents: dict[int, list[str]] = {}
        """Why the replies of clients failed, were rejected or were limited."""
        self._members = frozenset(cohort)
        self.unreached, self.bytes_up, self.local_seconds = 0, 0, 0.0
        self.seen: dict[str, list[float]] = {}
        """The measured sizes of every reply that met the contract, before any limit."""
        self.contributed: dict[int, float] = {}
        """The accounts of the accepted clients, if the server sums up a vector of their replies."""
        self.held: list[Measured] = []
        """Replies that wait until the limits of the first round are set."""
        self.usable: dict[int, Measured | None] = {}
        """Until the limits of the first round are set: each client's reply that may set them."""
        self.observed = Mean()
        """The means of metrics and of their squares, which are only recorded."""
        self.reported = Counter[str]()
        """The number of accepted replies with each metric, by the metric's name."""

    def add(self, reply: Reply | Failure) -> None:
        """Fold a reply, hold it until limits are set, or count the reason of a failure."""
        if isinstance(reply, Reply) and not all(map(well_named, reply.metrics)):
            reason = "wrong name of a metric"
            reply = Rejection(client=reply.client, reason=reason, nbytes=reply.nbytes)
        measure = self.admission.measure
        outcome = reply if isinstance(reply, Failure) else judged(measure, reply, reply)
        if isinstance(outcome, Failure):
            self._count(outcome)
        else:
            for name, size in outcome.sizes.items():
                self.seen.setdefault(name, []).append(size)
            self.held.append(outcome)
        if isinstance(reply, Failure) or self.admission.answered(reply.client):
            self._note(reply.client, None if isinstance(outcome, Failure) else outcome)
        if self.admission.limits is not None or self._calibrated():
            self._release()

    @property
    def late(self) -> ByVersion | None:
        """The admission by versions, where replies may be late."""
        return self.admission if isinstance(self.admission, ByVersion) else None

    @property
    def untouched(self) -> bool:
        """Whether no reply and no failure has arrived."""
        return not (self.accepted or self.held or self.failures or self.rejected or self.usable)

    @property
    def counted(self) -> int:
        """Number of clients that have a result: accepted, held, failed or rejected."""
        missing = self.failures.total() + self.rejected.total()
        return len(self.accepted) + len(self.held) + missing

    @property
    def uncalibrated(self) -> int:
        """Number of usable replies that are still needed to set the limits of the first round."""
        if self.admission.limits is not None:
            return 0
        usable = sum(measured is not None for measured in self.usable.values())
        return max(self.admission.calibration - usable, 0)

    def enough(self, target: int | None) -> bool:
        """Return whether ``target`` replies are accepted; judge held ones if they may suffice."""
        if target is None or len(self.accepted) + len(self.held) < target:
            return False
        self.close()
        return len(self.accepted) >= target

    def close(self) -> None:
        """Judge the held replies by limits from those that have arrived: no more will come."""
        if self.held:
            self._calibrated(final=True)
            self._release()

    def merge(self, other: Tally) -> None:
        """Add the tally of another share of the same cohort."""
        merge = getattr(self.total, "merge", None)
        require(
            merge is not None,
            f"{type(self.total).__name__} has no merge(), so several collectors cannot share a"
            " cohort; use one collector, or an aggregator with merge()",
        )
        twice = set(self.accepted) & set(other.accepted)
        require(not twice, f"client {min(twice, default=0)} is in two shares of one cohort")
        assert merge is not None
        merge(other.total)
        self.observed.merge(other.observed)
        self.whole.merge(other.whole)
        if self.late is not None and other.late is not None:
            self.late.merge(other.late)
        self.accepted += other.accepted
        self.contributed |= other.contributed
        for name in ("failures", "rejected", "limited", "reported"):
            getattr(self, name).update(getattr(other, name))
        for client, reasons in other.incidents.items():
            self.incidents.setdefault(client, []).extend(reasons)
        for name, sizes in other.seen.items():
            self.seen.setdefault(name, []).extend(sizes)
        self.unreached += other.unreached
        self.bytes_up += other.bytes_up
        self.local_seconds += other.local_seconds
        self.held += other.held
        self.usable |= other.usable
        if self.admission.limits is None:
            self.admission.limits = other.admission.limits
        if self.admission.limits is not None or self._calibrated():
            self._release()

    def mean(self) -> Vectors:
        """Return the combined vectors of the accepted replies."""
        return Vectors(self.total.vectors() | (self.whole.vectors() if self.summed else {}))

    def metrics(self) -> tuple[dict[str, float], dict[str, float]]:
        """Return means and standard deviations of the metrics that clients reported."""
        scalars = self.observed.scalars() if self.accepted else {}
        means = {
            name.removeprefix("metric:"): scalars[name]
            for name in sorted(scalars)
            if name.startswith("metric:")
        }
        squares = {name: scalars[f"square:{name}"] for name in means}
        spread = {n: math.sqrt(max(squares[n] - mean * mean, 0)) for n, mean in means.items()}
        return means, spread

    def distances(self, moved: Vector, mean: Vector) -> tuple[float, float]:
        """Return drift and consistency, if the server moved by ``moved`` after a plain mean."""
        squares = self.total.scalars()[NORM]
        drift = squares - _square(mean.norm())
        # y_i - x' = moved - delta_i, and the mean of delta_i is known.
        consistency = squares - 2 * moved.dot(mean) + _square(moved.norm())
        return max(drift, 0.0), max(consistency, 0.0)

    def _note(self, client: int, measured: Measured | None) -> None:
        """Remember a client's reply for setting limits; None if it is not usable."""
        if self.admission.limits is None and self.usable.get(client) is None:
            self.usable[client] = measured

    def _calibrated(self, *, final: bool = False) -> bool:
        """Set the limits once the first usable replies in the cohort's order have arrived."""
        # Walk the cohort in order and stop at the first client that has not answered: replies
        # behind it must not set limits, because the order of arrival would then change the result.
        first: list[Measured] = []
        late = () if self.late is None else self.late.flights
        for client in dict.fromkeys((*self.cohort, *late)):
            if client not in self.usable and not final:
                return False
            measured = self.usable.get(client)
            first += [] if measured is None else [measured]
            if len(first) == self.admission.calibration:
                break
        if not first:
            return False
        self.admission.calibrate(first)
        self.usable.clear()
        return True

    def _release(self) -> None:
        while self.held:
            measured = self.held.pop(0)
            outcome = judged(self.admission.admit, measured, measured.reply)
            if isinstance(outcome, Rejection):
                self._count(outcome)
                continue
            self._fold(outcome.reply, outcome.weight, outcome.scalars)
            if outcome.account is not None:
                self.contributed[outcome.reply.client] = outcome.account
            self.limited.update(outcome.limited)
            self._blame(outcome.reply.client, *(f"limited {what}" for what in outcome.limited))

    def _count(self, failure: Failure) -> None:
        counter = self.rejected if isinstance(failure, Rejection) else self.failures
        counter[failure.reason] += 1
        self._blame(failure.client, failure.reason)
        self.unreached += not failure.reached
        self.bytes_up += failure.nbytes if isinstance(failure, Rejection) else 0

    def _blame(self, client: int, *reasons: str) -> None:
        """Note reasons for a client of the cohort; a reply may claim to be of any other."""
        if reasons and client in self._members:
            self.incidents.setdefault(client, []).extend(reasons)

    def _fold(self, reply: Reply, weight: float, scalars: Mapping[str, float] | None) -> None:
        if scalars is None:
            scalars = {"steps": float(reply.steps), "lr_sum": reply.lr_sum}
            scalars[NORM] = _square(reply.vectors.delta.norm())
        vectors = reply.vectors
        if self.summed:
            self.whole.fold(vectors.only(self.summed))
            vectors = vectors.only(name for name in vectors if name not in self.summed)
        self.total.fold(vectors, weight=weight, scalars=scalars)
        observed = {f"metric:{name}": value for name, value in reply.metrics.items()}
        observed |= {f"square:{name}": value * value for name, value in reply.metrics.items()}
        self.observed.fold(Vectors(), weight=weight, scalars=observed)
        self.bytes_up += reply.nbytes
        self.reported.update(reply.metrics.keys())
        self.local_seconds += reply.seconds if 0 <= reply.seconds <= LONGEST else LONGEST
        self.accepted.append(reply.client)


def _square(value: float) -> float:
    return value * value  # ** would raise an error instead of returning infinity
