"""Admission: every reply is checked, measured, and then admitted, limited or rejected.

:mod:`.contract` describes the checks, and :mod:`.limits` describes how limits are set.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Literal

import torch

from ...algorithms import Algorithm, Vector, Vectors
from ...protocol.federated import BUFFERS
from ...protocol.messages import Rejection, Reply, Task
from .account import Accounts
from .bases import Bases
from .contract import Contract
from .limits import DELTA, Guard, History, Limit
from .moments import SecondMoment
from .outcome import Admitted, Measured

__all__ = ["Admission", "Weighting"]

Weighting = Literal["uniform", "examples"]

TENSOR = 1.5
"""The rise of one tensor may be this many times the limit of the whole."""

ROUNDING = 1e-3
"""How far a mean may be beyond the limit of its terms, which are rounded, relative to the limit."""


class Admission:
    """Applies the guard to the replies of one round."""

    def __init__(
        self,
        guard: Guard,
        algorithm: Algorithm,
        task: Task,
        cohort: Collection[int],
        *,
        history: History,
        weighting: Weighting = "uniform",
        accounts: Accounts | None = None,
        variances: Collection[int] = (),
        updates: int = 0,
        lacking: Vector | None = None,
    ) -> None:
        """Start a round after so many ``updates`` of the server's vectors.

        ``lacking`` is what deltas lack per unit of their lr_sum, see :mod:`fedlada.protocol.news`.
        """
        self._guard, self._weighting, self._variances = guard, weighting, variances
        self._updates, self._unit_delta = updates, algorithm.unit_delta
        self._contract = Contract(algorithm, task, cohort)
        self._accounts = accounts or Accounts(algorithm, Vectors(), {})
        self._bases = Bases(algorithm, task, lacking)
        clipped = task.vectors.x if guard.clip is not None else ()
        self._tensors = [f"{DELTA}[{i}]" for i, _ in enumerate(clipped)]
        self._moments = {
            moment.up: SecondMoment(task.vectors[moment.of], rising=moment.rising)
            for moment in algorithm.moments
        }
        self._never_below = self._smallest(task)
        self.limits: Mapping[str, Limit] | None = self._limits(history) if history else None
        """The limits of each quantity; None until calibrated."""
        self.calibration = guard.calibration

    def _limits(self, history: History) -> dict[str, Limit]:
        rising = {name: moment.rising for name, moment in self._moments.items()}
        return self._guard.limits(history, moments=rising, updates=self._updates)

    def _smallest(self, task: Task) -> dict[str, float]:
        """Return the size of each quantity that is never limited."""
        smallest = {name: _rounding(like) for name, like in self._contract.like.items()}
        for name in self._moments:
            del smallest[name]
        return smallest

    def measure(self, reply: Reply) -> Measured | Rejection:
        """Check and measure a reply, or return a rejection with the reason."""
        breach = self._contract.breach(reply)
        if breach is not None:
            return _rejection(reply, breach)
        sizes: dict[str, float] = {"steps": reply.steps, "lr_sum": reply.lr_sum}
        if self._weighting == "examples":
            sizes["examples"] = reply.examples
        low, rises = [], {}
        for name, vector in reply.vectors.items():
            if name in self._moments:
                sizes[name], rises[name], is_low = self._moments[name].rise(vector)
            elif name == DELTA and self._guard.clip is not None:
                sizes |= self._by_tensor(vector, self._own_lr_sum(reply))
                is_low = False
            else:
                sizes[name] = self._bases.distance(name, vector, self._own_lr_sum(reply))
                is_low = name == BUFFERS and self._negative(vector)
            low += [name] if is_low else []
        endless = [name for name, size in sizes.items() if not math.isfinite(size)]
        if endless:
            return _rejection(reply, f"{endless[0]} not finite")
        if self._accounts.up is not None:
            along = self._accounts.along(reply.vectors)
            sizes[self._accounts.name] = abs(self._accounts.after(reply.client, along))
        return Measured(reply, sizes, tuple(low), rises)

    def _by_tensor(self, delta: Vector, lr_sum: float) -> dict[str, float]:
        """Return the distance of a delta and of each of its tensors."""
        distances = self._bases.by_tensor(delta, lr_sum)
        named = zip(self._tensors, distances, strict=True)
        return {DELTA: math.hypot(*distances), **dict(named)}

    @property
    def quantities(self) -> frozenset[str]:
        """The names of what is measured of each reply."""
        counts = ["steps", "lr_sum", *(["examples"] if self._weighting == "examples" else [])]
        account = [] if self._accounts.up is None else [self._accounts.name]
        return frozenset((*counts, *self._contract.like, *self._tensors, *account))

    @property
    def moments(self) -> frozenset[str]:
        """The names of the second moments among them."""
        return frozenset(self._moments)

    def answered(self, client: int) -> bool:
        """Return whether the client has answered this task, with a valid reply or not."""
        return self._contract.answered(client)

    def calibrate(self, first: Sequence[Measured]) -> None:
        """Set the limits of a round without history from these replies."""
        seen: dict[str, list[float]] = {}
        for measured in first:
            for name, size in measured.sizes.items():
                seen.setdefault(name, []).append(size)
        self.limits = self._limits(self._guard.remember({}, seen))

    def admit(self, measured: Measured) -> Admitted | Rejection:
        """Bring quantities within their limits; reject a reply that is far beyond one."""
        reply, sizes, low, rises = measured
        longer, lr_sum = self._longer(reply), self._own_lr_sum(reply)
        absurd = [name for name, size in sizes.items() if self._absurd(name, size, longer)]
        if absurd:
            return _rejection(reply, f"{absurd[0]} beyond its limit")
        left = {name: self._left(name, size, longer) for name, size in sizes.items()}
        tensors = [left[name] for name in self._tensors]
        if tensors:  # what is left of a tensor counts, not what was sent
            kept = math.hypot(*(left[name] * sizes[name] for name in self._tensors))
            left[DELTA] = self._left(DELTA, kept, longer)
        notes = {name.partition("[")[0] for name, part in left.items() if part != 1}
        vectors = Vectors(reply.vectors)
        for name, vector in reply.vectors.items():
            if name in self._moments:
                factors = self._factors(name, left[name], rises[name], longer)
                vectors[name] = self._moment(name, vector, factors, notes, low=name in low)
            else:
                own = tensors if name == DELTA else ()
                vectors[name] = self._bases.shortened(name, vector, left[name], lr_sum, own)
        if BUFFERS in low:
            vectors.buffers = self._raised(vectors.buffers)
            notes.add("buffers too low")
        vectors.delta = self._bases.completed(vectors.delta, lr_sum)
        account = self._settle(reply.client, vectors, notes)
        # The square must be finite, too: the spread of a metric is computed from squares.
        metrics = {n: value for n, value in reply.metrics.items() if math.isfinite(value * value)}
        notes |= {"metrics not finite"} if len(metrics) < len(reply.metrics) else set()
        admitted = replace(
            reply,
            vectors=vectors,
            steps=max(1, int(reply.steps * left["steps"])),
            lr_sum=reply.lr_sum * left["lr_sum"],
            metrics=metrics,
            received=reply.nbytes,
        )
        weight = reply.examples * left["examples"] if self._weighting == "examples" else 1
        return Admitted(
            reply=admitted, weight=weight, limited=tuple(sorted(notes)), account=account
        )

    def impossible(
        self, mean: Vectors, lr_sum: float, replies: int, delta_square: float
    ) -> str | None:
        """Return the vector that cannot be the mean of so many admitted replies, if there is one.

        A mean is no further than the furthest of its terms, as is the mean square of norms.  A mean
        of second moments rises at most by the root of their number times the largest rise.
        """
        count = (self.limits or {}).get("lr_sum")
        middle = math.sqrt(count.low) * math.sqrt(count.high) if count is not None else 0.0
        longest = max(1.0, count.high / middle) if count is not None and middle else 1.0
        within, most_lr_sum = (lr_sum, lr_sum) if not count else (count.within(lr_sum), count.high)
        for name, limit in (self.limits or {}).items():
            if name in self._moments:
                size = self._moments[name].rise(mean[name]).whole / math.sqrt(replies)
            elif name in mean:
                size = self._bases.distance(name, mean[name], within, whole=True)
            else:
                continue
            most = max(limit.high * longest, self._never_below.get(name, 0.0)) * (1 + ROUNDING)
            far = name == DELTA and self._bases.too_long(delta_square, most, most_lr_sum)
            if far or not size <= most:
                return name
        return None

    def _own_lr_sum(self, reply: Reply) -> float:
        """Return the reply's lr_sum within its limits: else coasting would be what it says."""
        limit = (self.limits or {}).get("lr_sum")
        return reply.lr_sum if limit is None else limit.within(reply.lr_sum)

    def _longer(self, reply: Reply) -> float:
        """Return a client's lr_sum over the median, at least 1: how much further it may go."""
        limit = (self.limits or {}).get("lr_sum")
        if limit is None:
            return 1.0
        median = math.sqrt(limit.low) * math.sqrt(limit.high)
        return max(1.0, self._own_lr_sum(reply) / median) if median else 1.0

    def _left(self, name: str, size: float, longer: float) -> float:
        """Return the factor that brings a quantity within its limits; 1 changes no bit of it."""
        limit = (self.limits or {}).get(name)
        if limit is None or not size or name == self._accounts.name:
            return 1.0
        if size < limit.low:
            return limit.low / size
        clipped = name == DELTA and self._guard.clip is not None
        high = limit.high * (longer if self._grows(name) and not clipped else 1.0)
        return min(1.0, max(high, self._never_below.get(name, 0.0)) / size)

    def _absurd(self, name: str, size: float, longer: float) -> bool:
        limit = (self.limits or {}).get(name)
        if limit is None or name == self._accounts.name or name in self._tensors:
            return False
        most = limit.most * (longer if self._grows(name) else 1.0)
        most = max(most, self._never_below.get(name, 0.0) * self._guard.beyond)
        return not limit.least <= size <= most

    def _grows(self, name: str) -> bool:
        """Return whether a client that trains longer goes further in this quantity."""
        return (name == DELTA and not self._unit_delta) or name in self._moments

    def _factors(
        self, name: str, left: float, rises: Sequence[float], longer: float
    ) -> list[float]:
        """Return the factor on the rise of each tensor of a second moment."""
        limit = (self.limits or {}).get(name)
        if limit is None or not self._updates:  # the first rise is from next to nothing
            return [left] * len(rises)
        most = TENSOR * limit.high * longer
        return [min(left, most / rise) if rise else 1.0 for rise in rises]

    def _moment(
        self, name: str, vector: Vector, factors: Sequence[float], notes: set[str], *, low: bool
    ) -> Vector:
        moment = self._moments[name]
        if low:
            vector = moment.raised(vector)
            notes.add(f"{name} too low")
        if self._guard.largest_gradient is not None:
            boxed = moment.boxed(vector, self._guard.largest_gradient)
            notes |= set() if boxed is vector else {f"{name} out of the box"}
            vector = boxed
        if min(factors, default=1.0) >= 1:
            return vector
        notes.add(name)
        return moment.pulled(vector, factors)

    def _settle(self, client: int, vectors: Vectors, notes: set[str]) -> float | None:
        """Keep the client's account within its limit and return it."""
        accounts = self._accounts
        if accounts.up is None:
            return None
        along = accounts.along(vectors)
        limit = (self.limits or {}).get(accounts.name)
        share = 1.0 if limit is None else accounts.share(client, along, limit.high)
        if share < 1:
            vectors[accounts.up] = vectors[accounts.up] * share
            notes.add(accounts.name)
        return accounts.after(client, along * share)

    def _negative(self, buffers: Vector) -> bool:
        return any(bool((buffers.tensors[i] < 0).any()) for i in self._variances)

    def _raised(self, buffers: Vector) -> Vector:
        """Return the buffers with no negative variance."""
        return Vector(t.clamp_min(0) if i in self._variances else t for i, t in enumerate(buffers))


def _rounding(like: Vector) -> float:
    """Return the length of rounding errors of a vector, with some room."""
    return 10 * max((torch.finfo(t.dtype).eps for t in like), default=0.0) * like.norm()


def _rejection(reply: Reply, reason: str) -> Rejection:
    return Rejection(client=reply.client, reason=reason, nbytes=reply.nbytes)
