"""Stacks: the vectors of several clients as one, whose tensors have a first dimension for clients.

A rule that acts elementwise serves a stack as it is.  One that looks at a whole tensor does so
through :meth:`Vector.lift`, and one that looks at the length of a vector through
:meth:`Vector.of_length`; both are defined for one client.  A vector whose name ends in ``_each`` is
no stack: it counts steps, which are the same for all clients of a stack.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..devices import block_of, wide
from .vectors import M, Measure, Vector, Vectors, shape_in

__all__ = ["Member", "Stack", "part_of", "unstacked"]


class Stack(Vector):
    """The vectors of several clients: each tensor has a first dimension for the clients."""

    __slots__ = ()

    @classmethod
    def of(cls, vectors: Sequence[Vector]) -> Stack:
        """Return a stack with a copy of these vectors."""
        return cls(map(torch.stack, zip(*vectors, strict=True)))

    @classmethod
    def repeated(cls, vector: Vector, clients: int) -> Stack:
        """Return a stack that has the same vector for each client, without a copy."""
        return cls((t.expand(clients, *t.shape) for t in vector), vector.names)

    def split(self) -> list[Vector]:
        """Return the vector of each client; they share memory."""
        first, *others = self.tensors
        small = sum(t[0].numel() for t in self.tensors) <= block_of(first.device)
        plain = all(t.is_contiguous() for t in self.tensors)
        if small and plain and all(t.dtype == first.dtype for t in others):
            rows = Rows(self)
            return [Member(rows, place) for place in range(len(first))]
        return list(map(Vector, zip(*(t.unbind() for t in self.tensors), strict=True)))

    def lift(self, function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        return torch.func.vmap(function)

    def of_length(self, length: float) -> Vector:
        squares = [wide(torch.linalg.vector_norm(t.flatten(1), dim=1)) for t in self.tensors]
        norms = torch.linalg.vector_norm(torch.stack(squares), dim=0)
        if not bool(norms.isfinite().all()):  # squares of huge numbers overflow, but not there
            return Stack.of([vector.of_length(length) for vector in self.split()])
        factors = torch.where(norms > 0, length / norms, 0.0)
        return Stack(t * factors.to(t).view(-1, *(1 for _ in t.shape[1:])) for t in self.tensors)

    def zeros(self, name: str) -> Vector:
        return Stack(t.new_zeros([len(t), *shape_in(name, t.shape[1:])]) for t in self.tensors)

    def counter(self) -> Vector:
        return Vector(t[0] for t in self.tensors).counter()

    def norm(self) -> float:
        raise NotImplementedError(NO_NUMBER)

    def dot(self, other: Vector) -> float:
        raise NotImplementedError(NO_NUMBER)

    def distances(self, other: Vector, *, alpha: float = 1.0) -> list[float]:
        raise NotImplementedError(NO_NUMBER)

    def alike(self, tensors: Iterable[Tensor], names: Iterable[str] = ()) -> Vector:
        return Stack(tensors, names)


class Rows:
    """Small vectors of several clients as rows of a matrix, and what was measured of all rows."""

    def __init__(self, stack: Stack) -> None:
        flat = [t.flatten(1) for t in stack.tensors]
        self.matrix = torch.cat(flat, 1)
        parts = torch.split(self.matrix, [t.shape[1] for t in flat], dim=1)
        self.tensors = [part.view(t.shape) for part, t in zip(parts, stack.tensors, strict=True)]
        self.clients = list(zip(*(t.unbind() for t in self.tensors), strict=True))
        self._known: dict[Measure[Any], tuple[tuple[object, ...], list[Any]]] = {}
        self._version = self.matrix._version

    def measured(self, place: int, measure: Measure[M], of: tuple[Any, ...]) -> M:
        """Return what is measured of a row: of all at once, when it is asked for the first time."""
        if self.matrix._version != self._version:  # somebody has changed a row in place
            self._known.clear()
            self._version = self.matrix._version
        if measure not in self._known:
            self._known[measure] = of, measure(self.tensors, *of)
        known, results = self._known[measure]
        if known == of:
            result: M = results[place]
            return result
        return measure([t[place : place + 1] for t in self.tensors], *of)[0]


class Member(Vector):
    """The vector of one client of a stack; what is measured of it has the bits of any vector's."""

    __slots__ = ("_place", "_rows")

    def __init__(self, rows: Rows, place: int) -> None:
        super().__init__(rows.clients[place])
        self._rows, self._place = rows, place

    def row(self) -> Tensor:
        return self._rows.matrix[self._place]

    def measured(self, measure: Measure[M], *of: Any) -> M:
        return self._rows.measured(self._place, measure, of)

    def norm(self) -> float:
        length = self.measured(_norms)
        return length if math.isfinite(length) else super().norm()

    def distances(self, other: Vector, *, alpha: float = 1.0) -> list[float]:
        found = self.measured(_distances, other, alpha)
        return found if all(map(math.isfinite, found)) else super().distances(other, alpha=alpha)


def _norms(tensors: Sequence[Tensor]) -> list[float]:
    return [math.hypot(*parts) for parts in _lengths(tensors)]


def _distances(tensors: Sequence[Tensor], other: Vector, alpha: float) -> list[list[float]]:
    pairs = zip(tensors, other.tensors, strict=True)
    return _lengths([torch.sub(t, u, alpha=alpha) for t, u in pairs])


def _lengths(tensors: Sequence[Tensor]) -> list[list[float]]:
    """Return the norms of each client's tensors."""
    norms = [torch.linalg.vector_norm(t.flatten(1), dim=1).tolist() for t in tensors]
    return [list(own) for own in zip(*norms, strict=True)]


NO_NUMBER = "the clients of a stack have no number in common; use of_length() or lift()"


def part_of(c: Vectors, first: int, last: int) -> Vectors:
    """Return the vectors of some clients of a stack, which share its memory."""
    return Vectors(
        (name, Stack((t[first:last] for t in v), v.names) if isinstance(v, Stack) else v)
        for name, v in c.items()
    )


def unstacked(c: Vectors, clients: int) -> list[Vectors]:
    """Return the vectors of each client; they share memory."""
    each: list[Vectors] = [Vectors() for _ in range(clients)]
    for name, vector in c.items():
        parts = vector.split() if isinstance(vector, Stack) else [vector] * clients
        for own, part in zip(each, parts, strict=True):
            own[name] = part
    return each
