r"""The guard: what a reply must be before it touches the sum.

Every reply is either admitted, admitted after being *limited*, or turned away with a reason; the
round goes on either way.  It is turned away if it is not the client's first answer to this very
task, if its vectors are not those of the contract (names, shapes, types), or if a number in it is
not finite or not possible.

What is merely too large is brought down to a limit, and what is ``beyond`` times larger than that
is turned away as well.  The limit of a quantity q (the length of a
vector, a weight, a number of steps) follows what replies have looked like of late:

.. math::
    q_\max = \tilde q \cdot \max(\text{slack},\; e^{\text{deviations}\cdot\sigma})^{1 + 4/n}

with :math:`\tilde q` the median of q over a round's replies, :math:`\sigma` the spread of log q
around it (1.4826 times the median absolute deviation) and n the number of replies, each the median
over as many of the last rounds as have ``memory`` replies between them.  Less than half of the
replies cannot move it far.  Where clients take equally many steps σ is small and ``slack``
decides, little more than what an honest client could do anyway; where they do not, the limit
widens by itself, and so it does where few replies say little.

A delta is measured from where a client without any gradient would be (``Part.coasting``): where
the last round's direction g_a is mixed into every step, the server knows that share, and lies
about the rest cannot build up in it from round to round.

A second moment is measured as :math:`\sum|\sqrt{\hat v_i}-\sqrt v|` from the v that was sent: it
must not fall below v (for AMSGrad; below 0 for Adam) and is pulled back to v, on the scale of the
root, if it rose too far.  This is what protects a shared v from one client that sends a huge one,
which AMSGrad's maximum would never forget.  ``largest_gradient`` adds the box
:math:`\hat v_i \le \max(v, C^2)`; no C is safe to assume, since honest v̂ of one model differ by
many decades, so it is off by default.

Limits follow from earlier rounds alone, so the order of arrival does not matter.  In the first
round, before anything is known, the first ``calibration`` replies are held until a median exists.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import torch

from .algorithms import Algorithm, Vector, Vectors, require
from .moments import SecondMoment
from .protocol import Failure, Rejection, Reply, Task

__all__ = ["Admission", "Admitted", "Guard", "History", "Weighting"]

Weighting = Literal["uniform", "examples"]

Seen = tuple[float, float, int]
"""Of one quantity in one round: median, spread, and number of replies."""

History = dict[str, list[Seen]]
"""Of each quantity, the last rounds."""

METRICS, NAME = 100, 100
"""How many metrics a reply may have, and how long their names may be."""

RISE = 0.15
"""What a second moment may always rise by, as a share of its root: late in training most rise by
nothing, and the median says nothing."""

MOST = 2**53
"""Counts from here on are not exact as floating-point numbers."""


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
    """Replies held in the first round until their median is known."""
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


def _summary(values: Sequence[float]) -> Seen:
    return statistics.median(values), _spread(values), len(values)


def _spread(values: Sequence[float]) -> float:
    """A standard deviation of the logarithm that less than half of the values cannot move far."""
    logs = [math.log(value) for value in values if value > 0]
    if not logs:
        return 0.0
    middle = statistics.median(logs)
    return 1.4826 * statistics.median(abs(log - middle) for log in logs)


def _alike(vector: Vector, like: Vector) -> bool:
    return len(vector) == len(like) and all(
        t.shape == u.shape and t.dtype == u.dtype and t.layout == u.layout
        for t, u in zip(vector, like, strict=True)
    )


def _is_number(value: object) -> bool:
    return isinstance(value, float) or (type(value) is int and abs(value) < MOST)
