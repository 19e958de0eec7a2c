"""Admission where replies may be late: each is judged as one to the task that its client was sent.

The guard checks and measures a reply against what the server sent, so there is one admission for
each version, that is, for each task to which a reply may still come.  All have the same limits: a
size is that of what the client changed, and a second moment's rise is in units of the one sent now,
so sizes of different versions can be compared.  A client has one task at a time, and its first
answer ends it, so nothing counts twice.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from ...algorithms import Round, Vector, Vectors
from ...protocol.messages import Rejection, Reply
from ..guard import Admission, Admitted, Limit, Measured, NoGuard

__all__ = ["Aging", "ByVersion"]

Aging = Literal["root", "none"]


class ByVersion:
    """Has an admission for every version; a late reply weighs less if it is aged."""

    def __init__(
        self,
        admission: Callable[[int], Admission | NoGuard],
        flights: Mapping[int, int],
        *,
        round: int,
        aging: Aging,
    ) -> None:
        """Start a round; ``flights`` maps each client under way to the version of its task.

        ``admission`` makes the one of a version, once its first reply arrives.
        """
        self._make, self.flights = admission, flights
        self._round, self._aging = round, aging
        self._newest = admission(round)
        self._admissions = {round: self._newest}
        self.calibration = self._newest.calibration
        self.members: list[tuple[int, int]] = []
        """The client and the version of each reply that was measured."""
        self.ages: list[int] = []
        """The age of each reply that was admitted."""
        self._plain, self._aged = list[float](), list[float]()

    def __copy__(self) -> ByVersion:
        """Return one for a share of the round: with the limits so far, and without replies."""
        other = object.__new__(ByVersion)
        other.__dict__ |= self.__dict__
        other._newest = copy.copy(self._newest)
        other._admissions = {self._round: other._newest}
        other.members, other.ages, other._plain, other._aged = [], [], [], []
        return other

    def merge(self, other: ByVersion) -> None:
        """Add the replies of another share of the round."""
        self.read(other.written())

    def written(self) -> dict[str, list[Any]]:
        """Return the replies as plain values."""
        return {
            "members": [[*member] for member in self.members],
            "ages": [*self.ages],
            "plain": [*self._plain],
            "aged": [*self._aged],
        }

    def read(self, values: Mapping[str, list[Any]]) -> None:
        """Add the replies that were written."""
        self.members += [(client, version) for client, version in values["members"]]
        self.ages += values["ages"]
        self._plain += values["plain"]
        self._aged += values["aged"]

    @property
    def ages_replies(self) -> bool:
        """Whether late replies weigh less."""
        return self._aging == "root"

    @property
    def limits(self) -> Mapping[str, Limit] | None:
        """The limits of each quantity; None until calibrated."""
        return self._newest.limits

    @limits.setter
    def limits(self, limits: Mapping[str, Limit] | None) -> None:
        for admission in self._admissions.values():
            admission.limits = limits

    def _of(self, version: int) -> Admission | NoGuard:
        if version not in self._admissions:
            self._admissions[version] = self._make(version)
            self._admissions[version].limits = self.limits
        return self._admissions[version]

    @property
    def quantities(self) -> frozenset[str]:
        """The names of the quantities that are measured in each reply."""
        return self._newest.quantities

    @property
    def moments(self) -> frozenset[str]:
        """The names of the quantities that are second moments."""
        return self._newest.moments

    def measure(self, reply: Reply) -> Measured | Rejection:
        """Check and measure a reply to its client's task, or return a rejection with the reason."""
        version, reason = self.flights.get(reply.client), "reply to another task"
        if version is None:
            reason = "too late" if reply.round < self._round else "not asked"
        elif reply.round == version:
            outcome = self._of(version).measure(reply)
            if isinstance(outcome, Measured):
                self.members.append((reply.client, version))
            return outcome
        return Rejection(client=reply.client, reason=reason, nbytes=reply.nbytes)

    def answered(self, client: int) -> bool:
        """Return whether the client has answered its task, with a valid reply or not."""
        version = self.flights.get(client)
        return version is not None and self._of(version).answered(client)

    def calibrate(self, first: Sequence[Measured]) -> None:
        """Set the limits of a round without history from these replies."""
        self._newest.calibrate(first)
        self.limits = self._newest.limits

    def admit(self, measured: Measured) -> Admitted | Rejection:
        """Bring quantities within their limits, and weigh the reply by its age."""
        version = measured.reply.round
        outcome = self._of(version).admit(measured)
        if isinstance(outcome, Rejection):
            return outcome
        age = self._round - version
        aged = outcome.weight / math.sqrt(1 + age) if self.ages_replies and age else outcome.weight
        self.ages.append(age)
        self._plain.append(outcome.weight)
        self._aged.append(aged)
        return replace(outcome, weight=aged)

    def impossible(
        self, mean: Vectors, lr_sum: float, replies: int, delta_square: float
    ) -> str | None:
        """Return the name of a vector that cannot be the mean of replies to the newest task."""
        return self._newest.impossible(mean, lr_sum, replies, delta_square)

    def bounded(self, r: Round, mean: Vectors) -> Round:
        """Return the scalars of the round, bounded, with the damping of late replies.

        A mean of old replies is as long as one of new replies; the mean weight makes it shorter.
        """
        damping = math.fsum(self._aged) / math.fsum(self._plain)  # exact, so in any order
        return replace(self._newest.bounded(r, mean), damping=damping)

    def centre(self, mean: Vector, lr_sum: float) -> Vector | None:
        """Return what the deltas of the next round are clipped around, from this round's mean."""
        return self._newest.centre(mean, lr_sum)
