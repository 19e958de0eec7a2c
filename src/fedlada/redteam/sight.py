"""What colluding clients see in a round, and the false vectors that they make of it."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property

import torch

from ..algorithms import Algorithm, Round, Vector, Vectors
from ..protocol.messages import Reply, Task
from ..protocol.seeds import seed_of

__all__ = ["Sight", "changed", "mean_of", "scaled"]

RISE = 1.0
"""The rise of a second moment that strict guards always allow in round t is this over t, as a share
of the sum of its root."""


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
        return self.known("delta")

    @cached_property
    def mean(self) -> Vector:
        """The mean of the honest deltas."""
        return mean_of(reply.vectors.delta for reply in self.honest)

    @cached_property
    def deviation(self) -> Vector:
        """The standard deviation of the honest deltas, coordinate by coordinate."""
        return Vector(torch.stack(ts).std(0, correction=0) for ts in self._columns())

    @cached_property
    def size(self) -> float:
        """The median distance of the honest deltas from the base."""
        return statistics.median(r.vectors.delta.distance(self.base) for r in self.honest)

    def known(self, name: str) -> Vector:
        """Return what a client without any gradient would send, zeros if nothing is known."""
        steps, lr_sum = (
            statistics.median(getattr(reply, count) for reply in self.honest)
            for count in ("steps", "lr_sum")
        )
        r = Round(steps=steps, lr_sum=self.algorithm.span(lr_sum))
        known = self.algorithm.part.known(self.task.vectors, r).get(name)
        known = self.task.vectors.x.zeros_like() if known is None else known
        return known.to(self.honest[0].vectors.delta)

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


def mean_of(vectors: Iterable[Vector]) -> Vector:
    """Return the mean of vectors."""
    return Vector(torch.stack(ts).mean(0) for ts in zip(*vectors, strict=True))


def changed(reply: Reply, **vectors: Vector) -> Vectors:
    """Return the vectors of a reply with some of them replaced."""
    return Vectors(reply.vectors | vectors)


def _sum(vector: Vector) -> float:
    return sum(float(t.sum()) for t in vector)


def _abs(vector: Vector) -> Vector:
    return Vector(t.abs() for t in vector)
