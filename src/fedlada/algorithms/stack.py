"""Stacks: the vectors of several clients as one, whose tensors have a first dimension for clients.

A rule that acts elementwise serves a stack as it is.  One that looks at a whole tensor does so
through :meth:`Vector.lift`, and one that looks at the length of a vector through
:meth:`Vector.of_length`; both are defined for one client.  A vector whose name ends in ``_each`` is
no stack: it counts steps, which are the same for all clients of a stack.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from ..devices import wide
from .vectors import Vector, Vectors, shape_in

__all__ = ["Stack", "part_of", "unstacked"]


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
        """Return the vector of each client, which shares memory with the stack."""
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
