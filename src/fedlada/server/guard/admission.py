"""Admission: every reply is checked, measured, and then admitted, limited or rejected.

:mod:`.contract` describes the checks, and :mod:`.limits` describes how limits are set.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, NamedTuple, TypeVar

import torch

from ...algorithms import Algorithm, Round, Vector, Vectors
from ...protocol.federated import BUFFERS
from ...protocol.messages import Rejection, Reply, Task
from .contract import Contract
from .limits import DELTA, Guard, History, Limit
from .moments import SecondMoment

__all__ = ["Accounts", "Admission", "Admitted", "Measured", "NoGuard", "Weighting", "judged"]

T = TypeVar("T")
R = TypeVar("R")

Weighting = Literal["uniform", "examples"]

UNIT = Round(steps=1, lr_sum=1.0)

TENSOR = 1.5
"""One tensor may rise by this many times the limit of all tensors together."""

ROUNDING = 1e-3
"""A mean may exceed the limit of its terms by this share of it, because terms are rounded."""


@dataclass(frozen=True, kw_only=True)
class Admitted:
    """A reply that may be folded into the mean, and its weight."""

    reply: Reply
    weight: float
    limited: tuple[str, ...] = ()
    """What was corrected in it, such as the quantities reduced to their limits."""
    account: float | None = None
    """The client's account after this reply, if the server sums up one of its vectors."""
    scalars: Mapping[str, float] | None = None
    """What is averaged beside the vectors; None for the counts and the square of delta's norm."""


class Measured(NamedTuple):
    """A reply with the measured size of each of its quantities."""

    reply: Reply
    sizes: dict[str, float]
    low: tuple[str, ...] = ()
    """The vectors with an element below the lowest possible value."""
    rises: Mapping[str, Sequence[float]] = {}
    """The relative rise of each tensor of each second moment."""


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
        base: Vector | None = None,
        centre: Vector | None = None,
        now: Vectors | None = None,
    ) -> None:
        """Start a round after ``updates`` rounds that changed the model.

        ``base`` is added to every delta, multiplied by its lr_sum
        (:mod:`fedlada.protocol.residual`); None if deltas are whole.  ``centre`` is the last mean
        delta per unit of lr_sum, if deltas are clipped around it.  ``now`` has the vectors of the
        newest task, if this one is earlier.
        """
        self._guard, self._weighting, self._variances = guard, weighting, variances
        self._updates, self._unit_delta = updates, algorithm.unit_delta
        self._contract = Contract(algorithm, task, cohort)
        self._accounts = accounts or Accounts(algorithm, Vectors(), {})
        self._origins = Origins(algorithm, task, base, centre)
        self._directions = algorithm.directions
        by_tensor = (*((DELTA,) if guard.clip is not None else ()), *self._directions)
        self._tensors = {
            name: [f"{name}[{i}]" for i in range(len(self._contract.like[name]))]
            for name in by_tensor
        }
        """For each vector that is limited by tensor, the names of its tensors' quantities."""
        now = task.vectors if now is None else now
        self._moments = {
            moment.up: SecondMoment(
                task.vectors[moment.of], rising=moment.rising, now=now[moment.of]
            )
            for moment in algorithm.moments
        }
        self._never_below = self._smallest(task)
        self.limits: Mapping[str, Limit] | None = self._limits(history) if history else None
        """The limits of each quantity; None until calibrated."""
        self.calibration = guard.calibration

    def _limits(self, history: History) -> dict[str, Limit]:
        rising = {name: moment.rising for name, moment in self._moments.items()}
        return self._guard.limits(
            history, moments=rising, directions=self._directions, updates=self._updates
        )

    def _smallest(self, task: Task) -> dict[str, float]:
        """Return, for each quantity, the size of its rounding errors, which is never limited."""
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
        r = self._own_round(reply)
        for name, vector in reply.vectors.items():
            if name in self._moments:
                sizes[name], rises[name], is_low = self._moments[name].rise(vector)
            elif name in self._tensors:
                sizes |= self._by_tensor(name, vector, r)
                is_low = False
            else:
                sizes[name] = self._origins.distance(name, vector, r)
                is_low = name == BUFFERS and self._negative(vector)
            low += [name] if is_low else []
        # Any NaN or infinity in a vector makes its size not finite, so no other check is needed.
        infinite = [name for name, size in sizes.items() if not math.isfinite(size)]
        if infinite:
            return _rejection(reply, f"{infinite[0]} not finite")
        if self._accounts.up is not None:
            along = self._accounts.along(reply.vectors)
            total = abs(self._accounts.after(reply.client, along))
            if not math.isfinite(total):
                return _rejection(reply, f"{self._accounts.name} not finite")
            sizes[self._accounts.name] = total
        return Measured(reply, sizes, tuple(low), rises)

    def _by_tensor(self, name: str, vector: Vector, r: Round) -> dict[str, float]:
        """Return the distance of a vector and of each of its tensors."""
        distances = self._origins.by_tensor(name, vector, r)
        named = zip(self._tensors[name], distances, strict=True)
        return {name: math.hypot(*distances), **dict(named)}

    @property
    def quantities(self) -> frozenset[str]:
        """The names of the quantities that are measured in each reply."""
        counts = ["steps", "lr_sum", *(["examples"] if self._weighting == "examples" else [])]
        account = [] if self._accounts.up is None else [self._accounts.name]
        return frozenset((*counts, *self._contract.like, *self._all_tensors, *account))

    @property
    def _all_tensors(self) -> frozenset[str]:
        """The names of the quantities that are single tensors of a vector."""
        return frozenset(name for names in self._tensors.values() for name in names)

    @property
    def moments(self) -> frozenset[str]:
        """The names of the quantities that are second moments."""
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
        longer, r = self._longer(reply), self._own_round(reply)
        absurd = [name for name, size in sizes.items() if self._absurd(name, size, longer)]
        if absurd:
            return _rejection(reply, f"{absurd[0]} beyond its limit")
        left = {name: self._left(name, size, longer) for name, size in sizes.items()}
        for name, tensors in self._tensors.items():
            # Tensors are limited first, so the whole vector is measured after that.
            kept = math.hypot(*(left[tensor] * sizes[tensor] for tensor in tensors))
            left[name] = self._left(name, kept, longer)
        notes = {name.partition("[")[0] for name, part in left.items() if part != 1}
        vectors = Vectors(reply.vectors)
        for name, vector in reply.vectors.items():
            if name in self._moments:
                factors = self._factors(name, left[name], rises[name], longer)
                vectors[name] = self._moment(name, vector, factors, notes, low=name in low)
            else:
                parts = [left[tensor] for tensor in self._tensors.get(name, ())]
                vectors[name] = self._origins.shortened(name, vector, left[name], r, parts)
        if BUFFERS in low:
            vectors.buffers = self._raised(vectors.buffers)
            notes.add("buffers too low")
        vectors.delta = self._origins.completed(vectors.delta, r.lr_sum)
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
        """Return the name of a vector that cannot be the mean of admitted replies, if there is one.

        A mean is at most as far from its origin as the farthest of its terms; the same holds for
        the mean square of norms and for each tensor that is limited by itself.  Where the origin
        depends on a client's steps, the mean may be farther by the distance between the origins for
        few and for many steps.  A mean of n second moments rises at most by the root of n times the
        largest rise.
        """
        limits, middle = self.limits or {}, self._median_lr_sum
        count = limits.get("lr_sum")
        longest = max(1.0, count.high / middle) if count is not None and middle else 1.0
        within, most_lr_sum = (lr_sum, lr_sum) if not count else (count.within(lr_sum), count.high)
        steps = limits.get("steps", Limit(1, 1, 1, 1))
        fewest, most_steps = (Round(steps=k, lr_sum=within) for k in (steps.low, steps.high))
        sizes = {name: m.rise(mean[name]).whole for name, m in self._moments.items()}
        sizes = {name: size / math.sqrt(replies) for name, size in sizes.items()}
        for name in mean.keys() & self._contract.like.keys() - sizes.keys():
            distances = self._origins.by_tensor(name, mean[name], fewest, complete=True)
            named = zip(self._tensors.get(name, ()), distances, strict=False)
            sizes |= {name: math.hypot(*distances), **dict(named)}
        for name, size in sizes.items():
            limit, vector = limits.get(name), name.partition("[")[0]
            if limit is None:
                continue
            most = max(self._high(name, limit, longest), self._never_below.get(vector, 0.0))
            most = most * (1 + ROUNDING) + self._origins.between(vector, fewest, most_steps)
            far = name == DELTA and self._origins.too_long(delta_square, most, most_lr_sum)
            if far or not size <= most:
                return vector
        return None

    def bounded(self, r: Round, mean: Vectors) -> Round:
        """Return the scalars of the round with bounds on those that scale everybody's step.

        The mean lr_sum, if deltas are multiplied by it, is within ``slack`` times the median.  A
        root mean square of deltas (``delta_square``) is at most ``slack`` times that of
        independent deltas with this mean: otherwise a liar that cancels the others' sum would
        make a rule that divides by the mean's length (FedExP) extrapolate without bound.
        """
        slack, lr_sum, longest = self._guard.slack, r.lr_sum, mean.delta.norm()
        if self._unit_delta:
            middle = self._median_lr_sum or lr_sum
            lr_sum = min(max(lr_sum, middle / slack), middle * slack)
            longest *= lr_sum
        longest *= slack * math.sqrt(r.accepted)
        square = r.delta_square * (lr_sum / r.lr_sum) * (lr_sum / r.lr_sum)
        return replace(r, lr_sum=lr_sum, delta_square=min(square, longest * longest))

    def centre(self, mean: Vector, lr_sum: float) -> Vector | None:
        """Return what the deltas of the next round are clipped around, from this round's mean.

        None if they are not clipped, or if the algorithm itself shares a direction.
        """
        if self._guard.clip is None or self._origins.known_delta:
            return None
        return mean / self._origins.span(lr_sum)

    @property
    def _median_lr_sum(self) -> float:
        """The median of lr_sum in recent rounds; 0 if it is not known."""
        limit = (self.limits or {}).get("lr_sum")
        return 0.0 if limit is None else math.sqrt(limit.low) * math.sqrt(limit.high)

    def _own_lr_sum(self, reply: Reply) -> float:
        """Return the claimed lr_sum within its limits.

        Otherwise a client could choose the point that its delta is measured from.
        """
        limit = (self.limits or {}).get("lr_sum")
        return reply.lr_sum if limit is None else limit.within(reply.lr_sum)

    def _own_round(self, reply: Reply) -> Round:
        """Return the claimed counts within their limits."""
        steps = (self.limits or {}).get("steps")
        within = reply.steps if steps is None else steps.within(reply.steps)
        return Round(steps=within, lr_sum=self._own_lr_sum(reply))

    def _longer(self, reply: Reply) -> float:
        """Return the client's lr_sum divided by the median, at least 1: its limits grow by this."""
        median = self._median_lr_sum
        return max(1.0, self._own_lr_sum(reply) / median) if median else 1.0

    def _left(self, name: str, size: float, longer: float) -> float:
        """Return the factor that brings a quantity within its limits; 1 changes no bit."""
        limit = (self.limits or {}).get(name)
        if limit is None or not size or name == self._accounts.name:
            return 1.0
        if size < limit.low:
            return limit.low / size
        high = max(self._high(name, limit, longer), self._never_below.get(name, 0.0))
        return min(1.0, high / size)

    def _high(self, name: str, limit: Limit, longer: float) -> float:
        """Return the limit of a quantity of a client that trained ``longer``."""
        clipped = name == DELTA and self._guard.clip is not None
        return limit.high * (longer if self._grows(name) and not clipped else 1.0)

    def _absurd(self, name: str, size: float, longer: float) -> bool:
        limit = (self.limits or {}).get(name)
        if limit is None or name == self._accounts.name or name in self._all_tensors:
            return False
        most = limit.most * (longer if self._grows(name) else 1.0)
        most = max(most, self._never_below.get(name, 0.0) * self._guard.beyond)
        return not limit.least <= size <= most

    def _grows(self, name: str) -> bool:
        """Return whether this quantity is larger for clients that train longer."""
        return (name == DELTA and not self._unit_delta) or name in self._moments

    def _factors(
        self, name: str, left: float, rises: Sequence[float], longer: float
    ) -> list[float]:
        """Return the factor on the rise of each tensor of a second moment."""
        limit = (self.limits or {}).get(name)
        if limit is None or not self._updates:  # in the first round, v rises from almost nothing
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


class NoGuard:
    """Admits every reply unchanged."""

    limits: Mapping[str, Limit] | None = {}
    calibration = 0
    quantities: frozenset[str] = frozenset()
    moments: frozenset[str] = frozenset()

    def __init__(
        self, weighting: Weighting, base: Vector | None = None, *, unit_delta: bool = False
    ) -> None:
        """Start a round; ``base`` is added to every delta, multiplied by the reply's lr_sum.

        With ``unit_delta``, deltas are divided by their lr_sum already, and it is multiplied by 1.
        """
        self._weighting, self._base, self._unit = weighting, base, unit_delta

    def measure(self, reply: Reply) -> Measured | Rejection:
        """Return the reply without measurements."""
        return Measured(reply, {})

    def answered(self, client: int) -> bool:
        """Return True: nothing is checked."""
        return True

    def calibrate(self, first: Sequence[Measured]) -> None:
        """Do nothing: there are no limits."""

    def admit(self, measured: Measured) -> Admitted | Rejection:
        """Admit the reply, with its delta whole."""
        reply = measured.reply
        if self._base is not None:
            lr_sum = 1.0 if self._unit else reply.lr_sum
            delta = reply.vectors.delta.add(self._base, alpha=lr_sum)
            reply = replace(reply, vectors=Vectors(reply.vectors | {"delta": delta}))
        return Admitted(reply=reply, weight=1 if self._weighting == "uniform" else reply.examples)

    def impossible(
        self, mean: Vectors, lr_sum: float, replies: int, delta_square: float
    ) -> str | None:
        """Return None: there are no limits."""
        return None

    def bounded(self, r: Round, mean: Vectors) -> Round:
        """Return the scalars of the round unchanged."""
        return r

    def centre(self, mean: Vector, lr_sum: float) -> Vector | None:
        """Return None: nothing is clipped."""
        return None


class Accounts:
    """How much each client's replies have lengthened a vector that the server sums up.

    SCAFFOLD's c and FedDyn's h are sums over all rounds.  The changes of an honest client add up
    to a vector that stays bounded, its own mean gradient; those of an attacker need not.  The
    server cannot keep that vector for every client, but one number is enough: the part of each
    change along the sum's current direction, added up.  The length of the sum is made of these
    numbers.
    """

    def __init__(
        self, algorithm: Algorithm, server: Vectors, contributed: Mapping[int, float]
    ) -> None:
        """Measure along the direction of the vector that the algorithm sums up, if any.

        A plan with a guard has one sum at most: where a second one absorbs what a client adds to
        the first, no account shows it.
        """
        self._contributed = contributed
        self.up: str | None = None
        """The vector of a reply that is added to the sum; None if the sum is still zero."""
        for total in algorithm.sums:
            length = server[total.into].norm() if total.into in server else 0.0
            if length > 0:
                self.up, self._direction = total.up, server[total.into] / length
        self.name = f"total {self.up}"

    def along(self, vectors: Vectors) -> float:
        """Return how much a reply's vectors lengthen the sum."""
        return 0.0 if self.up is None else vectors[self.up].dot(self._direction)

    def after(self, client: int, along: float) -> float:
        """Return the client's account after a reply."""
        return self._contributed.get(client, 0.0) + along

    def share(self, client: int, along: float, limit: float) -> float:
        """Return the factor on the reply that keeps the client's account within the limit."""
        before = self._contributed.get(client, 0.0)
        if abs(before + along) <= limit or not along:
            return 1.0
        room = limit - before if along > 0 else limit + before
        return min(1.0, max(0.0, room) / abs(along))


class Origins:
    """Measures vectors from what a client with zero gradients would send.

    That is what :meth:`Part.known` says, the sent buffers for averaged buffers, and zero for all
    others.  Where nothing is known of deltas, they are measured from the centre, if there is one.
    """

    def __init__(
        self, algorithm: Algorithm, task: Task, base: Vector | None, centre: Vector | None = None
    ) -> None:
        """Start a round; ``base`` is added to every delta, multiplied by its lr_sum."""
        self._base, self.span = base, algorithm.span
        known = algorithm.part.known(task.vectors, UNIT).get(DELTA) if base is None else base
        self.known_delta = known is not None
        """Whether a client without gradients would send a delta that is not zero."""
        self._zero_gradient = centre if known is None else known
        self._buffers = task.vectors.get(BUFFERS)  # empty if the model has none
        measured_by_rise = {moment.up for moment in algorithm.moments}
        self._others = [n for n in algorithm.up if n != DELTA and n not in measured_by_rise]
        self._known = partial(algorithm.part.known, task.vectors)
        self._last: tuple[Round | None, Vectors] = None, Vectors()

    def distance(self, name: str, vector: Vector, r: Round) -> float:
        """Return how far a vector is from its origin for a client with these counts."""
        origin = self._origin(name, r)
        return vector.norm() if origin is None else vector.distance(origin[0], alpha=origin[1])

    def by_tensor(
        self, name: str, vector: Vector, r: Round, *, complete: bool = False
    ) -> list[float]:
        """Return how far each tensor of a vector is from its origin.

        Pass ``complete=True`` if the base has already been added to this delta.
        """
        origin = self._origin(name, r, complete=complete)
        if origin is not None:
            return vector.distances(origin[0], alpha=origin[1])
        return [Vector([t]).norm() for t in vector]

    def between(self, name: str, one: Round, other: Round) -> float:
        """Return the distance of the origins for two clients, but for those of deltas."""
        if name not in self._others:
            return 0.0
        start = self._origin(name, one)
        return 0.0 if start is None else self.distance(name, start[0], other)

    def shortened(
        self, name: str, vector: Vector, left: float, r: Round, tensors: Sequence[float] = ()
    ) -> Vector:
        """Return the vector with its distance multiplied by ``left``; 1 changes no bit.

        ``tensors`` has a further factor for each of its tensors.
        """
        factors = [left * factor for factor in tensors] or [left] * len(vector)
        if all(factor == 1 for factor in factors):
            return vector
        origin = self._origin(name, r)
        if origin is None:
            return Vector(t * factor for t, factor in zip(vector, factors, strict=True))
        parts = zip(vector, origin[0] * origin[1], factors, strict=True)
        return Vector(((t - b) * factor).add_(b) for t, b, factor in parts)

    def _origin(
        self, name: str, r: Round, *, complete: bool = False
    ) -> tuple[Vector, float] | None:
        """Return a vector and a factor whose product is the origin; None if that is zero."""
        if name == DELTA:
            if self._zero_gradient is None or not (complete or self._base is None):
                return None
            return self._zero_gradient, self.span(r.lr_sum)
        if name == BUFFERS:
            return (self._buffers, 1.0) if self._buffers else None
        if name not in self._others:
            return None
        if self._last[0] != r:  # only the last one is held: each is as large as the model
            self._last = r, self._known(r)
        known = self._last[1].get(name)
        return None if known is None else (known, 1.0)

    def completed(self, delta: Vector, lr_sum: float) -> Vector:
        """Return a delta with the base added."""
        if self._base is None:
            return delta
        return delta.add(self._base, alpha=self.span(lr_sum))

    def too_long(self, square: float, limit: float, lr_sum: float) -> bool:
        """Return whether no deltas within the limit can have this mean square of their norms."""
        origin = self._zero_gradient
        longest = limit + (0.0 if origin is None else origin.norm() * self.span(lr_sum))
        return not square <= longest * longest


def _rounding(like: Vector) -> float:
    """Return the length of rounding errors of a vector, with some room."""
    return 10 * max((torch.finfo(t.dtype).eps for t in like), default=0.0) * like.norm()


def judged(judge: Callable[[T], R], subject: T, reply: Reply) -> R | Rejection:
    """Return ``judge(subject)``, or a rejection of the reply if that raises any error.

    A client may send any numbers.  Whatever they do to the guard's arithmetic, they must cost
    that client its reply, and never the round or the run.
    """
    try:
        return judge(subject)
    except Exception as error:
        return _rejection(reply, f"cannot be judged ({type(error).__name__})")


def _rejection(reply: Reply, reason: str) -> Rejection:
    return Rejection(client=reply.client, reason=reason, nbytes=reply.nbytes)
