"""Colluding clients for testing a federation: they know all replies of a round before they lie.

``Hostile`` stands between the server loop and any engine.  It lets the engine train the whole
cohort, the colluders too, and then replaces the replies of the colluders by what an attack makes
of the honest ones.  :mod:`.attacks` has the attacks.

>>> engine = Hostile(engine, ATTACKS["sign-flip"], {0, 10}, algorithm=algorithm, names=names)
"""

from __future__ import annotations

import statistics
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import torch

from ..algorithms import Algorithm, Vector, Vectors
from ..errors import require
from ..protocol.engine import Engine
from ..protocol.messages import Failure, Reply, Task
from ..protocol.seeds import seed_of
from .around import Around

if TYPE_CHECKING:
    from .attacks import Attack

__all__ = ["Hostile", "Sight", "colluders_of"]

RISE = 1.0
"""The rise of a second moment that strict guards always allow in round t is this over t, as a share
of the sum of its root."""


def colluders_of(clients: int, share: float) -> frozenset[int]:
    """Return which clients collude: a share of them, evenly spaced, client 0 among them."""
    require(0 < share < 1, f"share is {share}; it must be above 0 and below 1, such as 0.1")
    count = round(share * clients)
    require(
        0 < count < clients,
        f"share is {share}, which is {count} of {clients} clients; at least one must collude and"
        f" one must not: give a share from {1 / clients:.2g} to {1 - 1 / clients:.2g}",
    )
    return frozenset(i * clients // count for i in range(count))


class Hostile(Around):
    """An engine some of whose clients collude; all replies of a round are held in memory."""

    def __init__(
        self,
        engine: Engine,
        attack: Attack | None,
        colluders: Collection[int],
        *,
        algorithm: Algorithm,
        names: Mapping[str, Sequence[str]],
        strength: float | None = None,
        seed: int = 0,
    ) -> None:
        """Let ``colluders`` attack with ``strength``, or send nothing if ``attack`` is None.

        ``names`` are those of the model's ``parameters`` and ``buffers``, as ``federated_names``
        gives them; ``seed`` is that of the colluders' own random choices.
        """
        super().__init__(engine)
        self._attack, self._colluders = attack, frozenset(colluders)
        self._algorithm, self._names, self._seed = algorithm, names, seed
        own = None if attack is None else attack.strength
        self._strength = (own or 1.0) if strength is None else strength

    def exchange(self, task: Task, cohort: Sequence[int]) -> Iterator[Reply | Failure]:
        """Yield the replies of the colluders, who need no time to train, then all others."""
        if self._attack is None:
            for client in (c for c in cohort if c in self._colluders):
                yield Failure(client=client, reason="left out", reached=False)
            yield from self._engine.exchange(task, [c for c in cohort if c not in self._colluders])
            return
        replies = list(self._engine.exchange(task, cohort))
        false = [r for r in replies if isinstance(r, Reply) and r.client in self._colluders]
        others = [r for r in replies if r.client not in self._colluders]
        honest = [r for r in others if isinstance(r, Reply)]
        sight = Sight(task, self._algorithm, honest or false, names=self._names, seed=self._seed)
        for reply in false:
            yield self._attack.lie(sight, reply, self._strength)
        yield from (r for r in replies if isinstance(r, Failure) and r.client in self._colluders)
        yield from others


class Sight:
    """What colluders see in a round: the task, the honest replies and what follows from them."""

    def __init__(
        self,
        task: Task,
        algorithm: Algorithm,
        honest: Sequence[Reply],
        *,
        names: Mapping[str, Sequence[str]],
        seed: int = 0,
    ) -> None:
        self.task, self.algorithm, self.honest, self.names = task, algorithm, honest, names
        self._seed = seed

    @cached_property
    def base(self) -> Vector:
        """The delta of a client without any gradient, from which a guard measures deltas."""
        lr_sum = statistics.median(reply.lr_sum for reply in self.honest)
        coasting = self.algorithm.part.coasting(self.task.vectors, self.algorithm.span(lr_sum))
        return self.task.vectors.x.zeros_like() if coasting is None else coasting

    @cached_property
    def mean(self) -> Vector:
        """The mean of the honest deltas."""
        return Vector(torch.stack(ts).mean(0) for ts in self._columns())

    @cached_property
    def deviation(self) -> Vector:
        """The standard deviation of the honest deltas, coordinate by coordinate."""
        return Vector(torch.stack(ts).std(0, correction=0) for ts in self._columns())

    @cached_property
    def size(self) -> float:
        """The median distance of the honest deltas from the base."""
        return statistics.median(r.vectors.delta.distance(self.base) for r in self.honest)

    def away(self, direction: Vector, strength: float) -> Vector:
        """Return the delta at ``strength`` honest distances from the base in a direction.

        A guard cuts what is beyond its limit of a few honest distances to that limit, and rejects
        what is ten times beyond: with a strength of 5 a reply ends at the limit.
        """
        return self.base.add(scaled(direction, strength * self.size))

    def fixed(self, like: Vector, purpose: str) -> Vector:
        """Return a random direction, the same in every round."""
        generator = torch.Generator().manual_seed(seed_of(self._seed, "attack", purpose))
        return Vector(
            torch.randn(t.shape, generator=generator, dtype=t.dtype).to(t.device) for t in like
        )

    def sent(self, name: str) -> Vector:
        """Return the second moment that the server sent, by the name of the one in a reply."""
        (moment,) = (m for m in self.algorithm.moments if m.up == name)
        return self.task.vectors[moment.of]

    def raised(self, name: str, weights: Vector, strength: float) -> Vector:
        """Return the second moment that was sent, its root raised in proportion to weights.

        The sum of the rise is ``strength`` times the median honest one, or the rise that guards
        always allow if that is more.
        """
        root = self.sent(name).sqrt()
        rises = [_sum(_abs(r.vectors[name].clamp_min(0).sqrt() - root)) for r in self.honest]
        always = RISE / (self.task.round + 1) * _sum(root)
        rise = strength * max(statistics.median(rises), always)
        total = _sum(weights)
        higher = root.add(weights, alpha=rise / total if total else 0.0)
        return higher * higher

    def sizes(self, name: str, base: Vector | None = None) -> float:
        """Return the median length of a vector of the honest replies, or distance from a base."""
        own = (reply.vectors[name] for reply in self.honest)
        return statistics.median(v.norm() if base is None else v.distance(base) for v in own)

    def _columns(self) -> Iterator[tuple[torch.Tensor, ...]]:
        return zip(*(reply.vectors.delta for reply in self.honest), strict=True)


def scaled(direction: Vector, length: float) -> Vector:
    """Return a vector of this length in a direction; zero if there is no direction."""
    norm = direction.norm()
    return direction * (length / norm if norm else 0.0)


def changed(reply: Reply, **vectors: Vector) -> Vectors:
    """Return the vectors of a reply with some of them replaced."""
    return Vectors(reply.vectors | vectors)


def _sum(vector: Vector) -> float:
    return sum(float(t.sum()) for t in vector)


def _abs(vector: Vector) -> Vector:
    return Vector(t.abs() for t in vector)
