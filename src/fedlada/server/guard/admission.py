"""Admission: every reply is checked, measured, and then admitted, limited or rejected.

:mod:`.contract` describes the checks, and :mod:`.limits` describes how limits are set.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import torch

from ...algorithms import Algorithm, Vector, Vectors
from ...protocol.federated import BUFFERS
from ...protocol.messages import Rejection, Reply, Task
from .contract import Contract
from .limits import Guard, History
from .moments import SecondMoment

__all__ = ["Admission", "Admitted", "Measured", "Open", "Weighting"]

Weighting = Literal["uniform", "examples"]

RISE = 0.15
"""The rise of a second moment that is always allowed, as a share of the sum of its root: late in
training most do not rise at all, and the median is meaningless."""


@dataclass(frozen=True, kw_only=True)
class Admitted:
    """A reply that may be folded into the mean, and its weight."""

    reply: Reply
    weight: float
    limited: tuple[str, ...] = ()
    """What was corrected in it, such as the quantities reduced to their limits."""


class Measured(NamedTuple):
    """A reply with the measured size of each of its quantities."""

    reply: Reply
    sizes: dict[str, float]
    low: tuple[str, ...]
    """The second moments with an element below the lowest possible value."""


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
    ) -> None:
        self._guard, self._weighting = guard, weighting
        self._contract = Contract(algorithm, task, cohort)
        self._base = _base(algorithm, task, history)
        self._moments = {
            moment.up: SecondMoment(task.vectors[moment.of], rising=moment.rising)
            for moment in algorithm.moments
        }
        x = task.vectors.x
        rounding = max(torch.finfo(t.dtype).eps for t in x) * x.norm()
        # A vector no longer than the rounding errors of x is never limited.
        self._never_below = dict.fromkeys(self._contract.like, rounding)
        self._never_below |= {name: RISE * moment.size for name, moment in self._moments.items()}
        self.limits: Mapping[str, float] | None = (
            guard.limits(history, self._moments) if history else None
        )
        """The largest value of each quantity that is not limited; None until calibrated."""
        self.calibration = guard.calibration

    def measure(self, reply: Reply) -> Measured | Rejection:
        """Check and measure a reply, or return a rejection with the reason."""
        breach = self._contract.breach(reply)
        if breach is not None:
            return _rejection(reply, breach)
        sizes: dict[str, float] = {"steps": reply.steps, "lr_sum": reply.lr_sum}
        if self._weighting == "examples":
            sizes["examples"] = reply.examples
        low = []
        for name, vector in reply.vectors.items():
            if name in self._moments:
                sizes[name], is_low = self._moments[name].rise(vector)
                low += [name] if is_low else []
            else:
                base = self._base.get(name)
                sizes[name] = vector.norm() if base is None else vector.distance(base)
        endless = [name for name, size in sizes.items() if not math.isfinite(size)]
        if endless:
            return _rejection(reply, f"{endless[0]} not finite")
        return Measured(reply, sizes, tuple(low))

    def answered(self, client: int) -> bool:
        """Return whether the client has answered this task, with a valid reply or not."""
        return self._contract.answered(client)

    def calibrate(self, first: Sequence[Measured]) -> None:
        """Set the limits of a round without history from these replies."""
        seen: dict[str, list[float]] = {}
        for _, sizes, _ in first:
            for name, size in sizes.items():
                seen.setdefault(name, []).append(size)
        self.limits = self._guard.limits(self._guard.remember({}, seen), self._moments)

    def admit(self, measured: Measured) -> Admitted | Rejection:
        """Reduce quantities that exceed their limits; reject a reply that is far beyond one."""
        reply, sizes, low = measured
        left = {name: self._left(name, size) for name, size in sizes.items()}
        absurd = [name for name, part in left.items() if part * self._guard.beyond < 1]
        if absurd:
            return _rejection(reply, f"{absurd[0]} beyond its limit")
        notes = [name for name, part in left.items() if part < 1]
        vectors = Vectors(reply.vectors)
        for name, vector in reply.vectors.items():
            if name in self._moments:
                vectors[name], more = self._moment(name, vector, left[name], low=name in low)
                notes += more
            elif left[name] < 1:
                base = self._base.get(name)
                vectors[name] = (vector if base is None else vector - base) * left[name]
                if base is not None:
                    vectors[name].add_(base)
        # The square must be finite, too: the spread of a metric is computed from squares.
        metrics = {n: value for n, value in reply.metrics.items() if math.isfinite(value * value)}
        notes += ["metrics not finite"] if len(metrics) < len(reply.metrics) else []
        admitted = replace(
            reply,
            vectors=vectors,
            steps=max(1, int(reply.steps * left["steps"])),
            lr_sum=reply.lr_sum * left["lr_sum"],
            metrics=metrics,
            received=reply.nbytes,
        )
        weight = reply.examples * left["examples"] if self._weighting == "examples" else 1
        return Admitted(reply=admitted, weight=weight, limited=tuple(notes))

    def _left(self, name: str, size: float) -> float:
        """Return the factor that reduces a quantity to its limit; 1 changes no bit of a reply."""
        limit = (self.limits or {}).get(name, math.inf)
        return min(1.0, max(limit, self._never_below.get(name, 0.0)) / size) if size else 1.0

    def _moment(
        self, name: str, vector: Vector, left: float, *, low: bool
    ) -> tuple[Vector, list[str]]:
        moment, notes = self._moments[name], []
        if low:
            vector = moment.raised(vector)
            notes.append(f"{name} too low")
        if self._guard.largest_gradient is not None:
            boxed = moment.boxed(vector, self._guard.largest_gradient)
            notes += [] if boxed is vector else [f"{name} out of the box"]
            vector = boxed
        return (moment.pulled(vector, left) if left < 1 else vector), notes


class Open:
    """No guard: every reply is admitted unchanged."""

    limits: Mapping[str, float] | None = {}
    calibration = 0

    def __init__(self, weighting: Weighting) -> None:
        self._weighting = weighting

    def measure(self, reply: Reply) -> Measured | Rejection:
        """Return the reply without measurements."""
        return Measured(reply, {}, ())

    def answered(self, client: int) -> bool:
        """Return True: nothing is checked."""
        return True

    def calibrate(self, first: Sequence[Measured]) -> None:
        """Do nothing: there are no limits."""

    def admit(self, measured: Measured) -> Admitted | Rejection:
        """Admit the reply unchanged."""
        weight = 1 if self._weighting == "uniform" else measured.reply.examples
        return Admitted(reply=measured.reply, weight=weight)


def _base(algorithm: Algorithm, task: Task, history: History) -> Vectors:
    """Return the vectors that a client without any gradient would send."""
    base = Vectors()
    if "steps" in history:
        coasting = algorithm.part.coasting(task.vectors, task.lr * history["steps"][-1][0])
        base |= {} if coasting is None else {"delta": coasting}
    if BUFFERS in task.vectors and len(task.vectors.buffers):
        base[BUFFERS] = task.vectors.buffers
    return base


def _rejection(reply: Reply, reason: str) -> Rejection:
    return Rejection(client=reply.client, reason=reason, nbytes=reply.nbytes)
