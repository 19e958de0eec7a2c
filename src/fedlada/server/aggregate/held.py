"""What all robust rules share: they hold the replies of a round and combine them at its end."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from statistics import median
from typing import Any, ClassVar

from torch import Tensor

from ...algorithms import Vector, Vectors
from ...errors import require
from ...protocol.codecs import MalformedReply
from ...protocol.strict import Tensors, alike, integer, items, number, table

__all__ = ["Held", "Rule"]


class Held:
    """Holds a round's replies, with the methods of ``Mean``; their order does not matter."""

    is_mean: ClassVar[bool] = False
    weighted: ClassVar[bool] = False

    def __init__(self, rule: Rule) -> None:
        self.count, self._rule = 0, rule
        self._replies: list[Vectors] = []
        self._scalars: dict[str, list[float]] = {}

    def fold(
        self, vectors: Vectors, *, weight: float = 1, scalars: Mapping[str, float] | None = None
    ) -> None:
        """Hold one reply; its tensors are not copied, so they must not change afterwards."""
        require(weight == 1, f"weight is {weight}; it must be 1 here: use weighting='uniform'")
        first = self._replies[0] if self._replies else vectors
        require({*vectors} == {*first}, f"a reply has {[*vectors]}; the first has {[*first]}")
        for name in first:
            new, like = ([(t.dtype, *t.shape) for t in v[name]] for v in (vectors, first))
            require(
                new == like,
                f"a reply's {name} has types and shapes {new}; in the first reply it has {like}",
            )
        self._replies.append(vectors)
        for name, value in (scalars or {}).items():
            self._scalars.setdefault(name, []).extend([value] if math.isfinite(value) else [])
        self.count += 1

    @property
    def least(self) -> int:
        """The smallest number of replies that the rule can combine."""
        return self._rule.least

    @property
    def weight(self) -> Fraction:
        """The sum of the weights, which are 1."""
        return Fraction(self.count)

    def combines(self, count: int) -> bool:
        """Return whether this number of replies can be combined."""
        return self._rule.combines(count)

    def merge(self, other: Held) -> None:
        """Hold the replies of another collector as well."""
        self._replies += other._replies
        for name, values in other._scalars.items():
            self._scalars.setdefault(name, []).extend(values)
        self.count += other.count

    def replies(self) -> Iterator[tuple[Vectors, dict[str, float]]]:
        """Yield each reply with those of its scalars that every reply has."""
        whole = {name: each for name, each in self._scalars.items() if len(each) == self.count}
        for i, vectors in enumerate(self._replies):
            yield vectors, {name: each[i] for name, each in whole.items()}

    def written(self) -> tuple[dict[str, Any], dict[str, list[Tensor]]]:
        """Return the replies as plain values and tensors, which are not copied."""
        header = {"count": self.count, "scalars": self._scalars}
        return header, {
            f"{i}:{name}": vector.tensors
            for i, reply in enumerate(self._replies)
            for name, vector in reply.items()
        }

    def read(
        self, header: object, tensors: Tensors, like: Mapping[str, Vector], *, most: int
    ) -> None:
        """Hold what was written: at most ``most`` replies of the types and shapes of ``like``."""
        values = table(header, {"count", "scalars"})
        self.count = integer(values["count"], most=most)
        if tensors.keys() != {f"{i}:{name}" for i in range(self.count) for name in like}:
            raise MalformedReply("wrong vectors of a tally")
        self._scalars = {
            name: [number(value) for value in items(numbers, most=self.count)]
            for name, numbers in table(values["scalars"]).items()
        }
        self._replies = [
            Vectors((name, alike(tensors, f"{i}:{name}", vector)) for name, vector in like.items())
            for i in range(self.count)
        ]

    def vectors(self) -> Vectors:
        """Return the aggregate of each vector, in the replies' type."""
        require(self.count > 0, f"{self._rule} of nothing: fold at least one reply first")
        by_name = ((name, [reply[name] for reply in self._replies]) for name in self._replies[0])
        return Vectors((name, self._rule.combine(vectors)) for name, vectors in by_name)

    def scalars(self) -> dict[str, float]:
        """Return the median of each scalar's finite values; NaN if it has none."""
        return {k: float(median(v)) if v else math.nan for k, v in self._scalars.items()}


class Rule(ABC):
    """A robust rule with its settings; calling it makes the object that holds a round's replies."""

    name: ClassVar[str]
    """The name of the rule in a plan."""

    @property
    def least(self) -> int:
        """The smallest number of replies that the rule can combine."""
        return 1

    def combines(self, count: int) -> bool:
        """Return whether this number of replies can be combined."""
        return count >= self.least

    def __call__(self) -> Held:
        return Held(self)

    @abstractmethod
    def combine(self, replies: Sequence[Vector]) -> Vector:
        """Return the aggregate of one vector of all replies."""
