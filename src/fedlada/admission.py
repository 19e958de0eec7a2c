"""Replies on their way in: each is looked at, measured, and admitted, limited or turned away.

What is looked for, and how limits are set, is told in :mod:`fedlada.guard`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import torch

from .algorithms import Algorithm, Vector, Vectors
from .guard import Guard, History
from .moments import SecondMoment
from .protocol import Failure, Rejection, Reply, Task

__all__ = ["Admission", "Admitted", "Weighting"]

Weighting = Literal["uniform", "examples"]

METRICS, NAME = 100, 100
"""How many metrics a reply may have, and how long their names may be."""

RISE = 0.15
"""What a second moment may always rise by, as a share of its root: late in training most rise by
nothing, and the median says nothing."""

MOST = 2**53
"""Counts from here on are not exact as floating-point numbers."""


@dataclass(frozen=True, kw_only=True)
class Admitted:
    """A reply that may be folded into the mean, and with which weight."""

    reply: Reply
    weight: float
    limited: tuple[str, ...] = ()
    """What of it was brought down to a limit."""


class Measured(NamedTuple):
    """A reply with how large each quantity of it is."""

    reply: Reply
    sizes: dict[str, float]
    low: tuple[str, ...]
    """The second moments with an element lower than it can be."""


class Admission:
    """The guard over the replies of one round."""

    def __init__(
        self,
        guard: Guard,
        algorithm: Algorithm,
        task: Task,
        cohort: Sequence[int],
        *,
        history: History,
        weighting: Weighting = "uniform",
        hold: int | None = None,
    ) -> None:
        """``hold``: never hold more replies than this."""
        self._guard, self._task, self._weighting = guard, task, weighting
        self._history = history
        self._seen: dict[str, list[float]] = {}
        self._waiting = set(cohort)
        self._answered: set[int] = set()
        self._hold = min(guard.calibration, len(cohort), hold or len(cohort))

        self._like = dict.fromkeys(algorithm.up, task.vectors.x)
        if "buffers" in task.vectors:
            self._like["buffers"] = task.vectors.buffers
        # Where honest vectors would be if clients had nothing to say.
        self._base = Vectors()
        if "steps" in history:
            lr_steps = task.lr * history["steps"][-1][0]
            coasting = algorithm.part.coasting(task.vectors, lr_steps)
            self._base |= {} if coasting is None else {"delta": coasting}
        if "buffers" in task.vectors and len(task.vectors.buffers):
            self._base["buffers"] = task.vectors.buffers
        x = task.vectors.x
        rounding = max(torch.finfo(t.dtype).eps for t in x) * x.norm()
        # What is no longer than the rounding errors of x is as small as can be.
        self._never_below = dict.fromkeys(self._like, rounding)
        self._moments = {
            up: SecondMoment(task.vectors[down], rising=up in part.rising)
            for part in algorithm.part.chain()
            for up, down in part.moments.items()
        }
        self._never_below |= {name: RISE * moment.size for name, moment in self._moments.items()}
        self._limits = guard.limits(history, self._moments) if history else None

    def of(self, replies: Iterable[Reply | Failure]) -> Iterator[Admitted | Failure]:
        """Each reply as it may be used, or why it may not be."""
        held: list[Measured] = []
        for reply in replies:
            if isinstance(reply, Failure):
                yield reply
                continue
            measured = self._look(reply)
            if isinstance(measured, str):
                yield Rejection(client=reply.client, reason=measured)
                continue
            for name, size in measured.sizes.items():
                self._seen.setdefault(name, []).append(size)
            held.append(measured)
            if self._limits is not None or len(held) >= self._hold:
                yield from self._release(held)
        yield from self._release(held)

    def remembered(self) -> History:
        """The history after this round; what was admitted counts as it came, before any limit."""
        return self._guard.remember(self._history, self._seen)

    def _look(self, reply: Reply) -> Measured | str:
        """Measure a reply, or say what is wrong with it."""
        wrong = self._not_to_this_task(reply) or self._not_as_agreed(reply)
        if wrong is not None:
            return wrong
        sizes: dict[str, float] = {"steps": reply.steps, "lr_steps": reply.lr_steps}
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
        return f"{endless[0]} not finite" if endless else Measured(reply, sizes, tuple(low))

    def _not_to_this_task(self, reply: Reply) -> str | None:
        if (reply.round, reply.nonce) != (self._task.round, self._task.nonce):
            return "reply to another task"
        if reply.client in self._answered:
            return "second reply"
        if reply.client not in self._waiting:
            return "not asked"
        self._waiting.remove(reply.client)
        self._answered.add(reply.client)
        return None

    def _not_as_agreed(self, reply: Reply) -> str | None:
        if set(reply.vectors) != set(self._like):
            return "wrong vectors"
        if not all(_alike(vector, self._like[name]) for name, vector in reply.vectors.items()):
            return "wrong shapes or types"
        if not all(type(n) is int and 0 < n < MOST for n in (reply.examples, reply.steps)):
            return "impossible counts"
        if not (_is_number(reply.lr_steps) and reply.lr_steps > 0):
            return "impossible counts"
        if not (_is_number(reply.seconds) and 0 <= reply.seconds < math.inf):
            return "impossible counts"
        if len(reply.metrics) > METRICS or not all(
            isinstance(name, str) and len(name) <= NAME and _is_number(value)
            for name, value in reply.metrics.items()
        ):
            return "wrong metrics"
        return None

    def _release(self, held: list[Measured]) -> Iterator[Admitted | Rejection]:
        """Bring what is too large down to its limit, and turn away what is beyond that."""
        if held and self._limits is None:
            history = self._guard.remember({}, self._seen)
            self._limits = self._guard.limits(history, self._moments)
        while held:
            yield self._limited(held.pop(0), self._limits or {})

    def _limited(self, measured: Measured, limits: Mapping[str, float]) -> Admitted | Rejection:
        reply, sizes, low = measured
        # What is left of each quantity; 1 leaves a reply as it is, bit for bit.
        left = {
            name: min(1.0, max(limits.get(name, math.inf), self._never_below.get(name, 0.0)) / size)
            if size
            else 1.0
            for name, size in sizes.items()
        }
        absurd = [name for name, part in left.items() if part * self._guard.beyond < 1]
        if absurd:
            return Rejection(client=reply.client, reason=f"{absurd[0]} beyond its limit")
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
        # The square, too, must be a number: the spread of a metric is made of these.
        metrics = {n: value for n, value in reply.metrics.items() if math.isfinite(value * value)}
        notes += ["metrics not finite"] if len(metrics) < len(reply.metrics) else []
        admitted = replace(
            reply,
            vectors=vectors,
            steps=max(1, int(reply.steps * left["steps"])),
            lr_steps=reply.lr_steps * left["lr_steps"],
            metrics=metrics,
        )
        weight = reply.examples * left["examples"] if self._weighting == "examples" else 1
        return Admitted(reply=admitted, weight=weight, limited=tuple(notes))

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


def _alike(vector: Vector, like: Vector) -> bool:
    return len(vector) == len(like) and all(
        t.shape == u.shape and t.dtype == u.dtype and t.layout == u.layout
        for t, u in zip(vector, like, strict=True)
    )


def _is_number(value: object) -> bool:
    return isinstance(value, float) or (type(value) is int and abs(value) < MOST)
