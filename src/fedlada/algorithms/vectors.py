"""Vectors: aligned lists of tensors, one per federated parameter, with torch's method names.

A :class:`Vector` has the shape of the model (x, y, a gradient, a moment, ...); every operation
is elementwise over all of its tensors at once.  :class:`Vectors` holds vectors by name, so that
an algorithm reads as it is written in a paper: ``c.y.add_(c.g_a, alpha=-lr)``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from ..devices import CPU, block_of, numbers, wide, with_float64
from ..errors import FedladaError

__all__ = ["Measure", "Vector", "Vectors"]

M = TypeVar("M")

Measure = Callable[..., list[M]]
"""Measures several vectors of one shape: its tensors have a first dimension for the vectors."""


class Vector:
    """An element of parameter space: one tensor per federated parameter, in model order."""

    __slots__ = ("names", "tensors")

    def __init__(self, tensors: Iterable[Tensor], names: Iterable[str] = ()) -> None:
        self.tensors: list[Tensor] = list(tensors)
        self.names: tuple[str, ...] = tuple(names)
        """The names of the parameters; only the client's y has them."""

    def __len__(self) -> int:
        return len(self.tensors)

    def __iter__(self) -> Iterator[Tensor]:
        return iter(self.tensors)

    def __repr__(self) -> str:
        return f"Vector({len(self)} tensors, {self.numel():,} elements)"

    def alike(self, tensors: Iterable[Tensor], names: Iterable[str] = ()) -> Vector:
        """Return a vector of the kind of this one."""
        return Vector(tensors, names)

    def lift(self, function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        """Return a function of a tensor of one client as a function of this vector's tensors."""
        return function

    def each(self, function: Callable[[Tensor], Tensor]) -> Vector:
        """Return the results of a function of a tensor of one client."""
        return self.alike(map(self.lift(function), self.tensors))

    def measured(self, measure: Measure[M], *of: Any) -> M:
        """Return what a function measures of this vector; it may measure others with it."""
        return measure([t.unsqueeze(0) for t in self.tensors], *of)[0]

    def row(self) -> Tensor | None:
        """Return all elements in the order of their indices, if they lie in memory like that."""
        return None

    def __add__(self, other: float | Vector) -> Vector:
        return self.alike(torch._foreach_add(self.tensors, _operand(other)))

    def __sub__(self, other: Vector) -> Vector:
        return self.alike(torch._foreach_sub(self.tensors, other.tensors))

    def __mul__(self, factor: float | Vector) -> Vector:
        return self.alike(torch._foreach_mul(self.tensors, _operand(factor)))

    def __truediv__(self, divisor: float | Vector) -> Vector:
        return self.alike(torch._foreach_div(self.tensors, _operand(divisor)))

    def add(self, other: Vector, *, alpha: float = 1.0) -> Vector:
        """Return ``self + alpha * other``."""
        return self.alike(torch._foreach_add(self.tensors, other.tensors, alpha=alpha))

    def add_(self, other: Vector, *, alpha: float = 1.0) -> Vector:
        """Compute ``self += alpha * other`` in place."""
        torch._foreach_add_(self.tensors, other.tensors, alpha=alpha)
        return self

    def copy_(self, other: Vector) -> Vector:
        """Copy the numbers of ``other`` into this vector, across devices if needed."""
        if self.tensors:  # a model may have no buffers
            torch._foreach_copy_(self.tensors, other.tensors)
        return self

    def drop_dust_(self) -> Vector:
        """Set to 0, in place, what is so near to it that its products would be subnormal numbers.

        Weights that get no gradient end there by weight decay alone, and processors compute
        with subnormal numbers twenty times as slowly.
        """
        for t in self.tensors:
            tiny = torch.finfo(t.dtype).tiny
            if tiny < 2.0**-100:  # float16 is computed as float32, which has room below
                torch.hardshrink(t, tiny * 2.0**26, out=t)
        return self

    def sqrt(self) -> Vector:
        """Return the elementwise square root."""
        return self.alike(torch._foreach_sqrt(self.tensors))

    def sign(self) -> Vector:
        """Return the elementwise sign."""
        return self.alike(torch._foreach_sign(self.tensors))

    def maximum(self, other: Vector) -> Vector:
        """Return the elementwise maximum of both."""
        return self.alike(torch._foreach_maximum(self.tensors, other.tensors))

    def clamp_min(self, bound: float) -> Vector:
        """Return the elementwise maximum with ``bound``."""
        return self.alike(torch._foreach_clamp_min(self.tensors, bound))

    def dot(self, other: Vector) -> float:
        """Return the inner product; not finite if it, or an element, is beyond float64."""
        pairs = [(a.reshape(-1), b.reshape(-1)) for a, b in zip(self, other, strict=True)]
        parts = numbers(torch.dot(a, b) for a, b in pairs)
        if math.isfinite(sum(parts)):
            return math.fsum(parts)
        # Products of huge float32 numbers overflow, and fsum raises an error for inf - inf.
        return sum(numbers(torch.dot(wide(a), wide(b)) for a, b in pairs))

    def norm(self) -> float:
        """Return the Euclidean norm; it is not finite if, and only if, an element is not."""
        length = math.hypot(*numbers(torch.linalg.vector_norm(t) for t in self.tensors))
        if math.isfinite(length):
            return length
        # The squares of huge float32 numbers overflow; float64 is a fallback because it is slower.
        same = map(with_float64, self.tensors)
        return math.hypot(*numbers(torch.linalg.vector_norm(t, dtype=torch.float64) for t in same))

    def of_length(self, length: float) -> Vector:
        """Return the vector of this norm in the same direction; zero stays zero."""
        norm = self.norm()
        return self * (length / norm if norm else 0.0)

    def distance(self, other: Vector, *, alpha: float = 1.0) -> float:
        """Return the norm of ``self - alpha * other``."""
        return math.hypot(*self.distances(other, alpha=alpha))

    def distances(self, other: Vector, *, alpha: float = 1.0) -> list[float]:
        """Return the norm of each tensor of ``self - alpha * other``, in blocks to save memory."""
        found = []
        for t, u in zip(self.tensors, other.tensors, strict=True):
            pair = (torch.split(part.reshape(-1), block_of(t.device)) for part in (t, u))
            blocks = zip(*pair, strict=True)
            parts = (Vector([torch.sub(a, b, alpha=alpha)]).norm() for a, b in blocks)
            found.append(math.hypot(*parts))
        return found

    @property
    def device(self) -> torch.device:
        """The device of the first tensor; the CPU if there is none."""
        return self.tensors[0].device if self.tensors else CPU

    def clone(self) -> Vector:
        """Return a copy that shares no memory."""
        return self.alike(t.clone(memory_format=torch.preserve_format) for t in self.tensors)

    def to(self, like: Vector) -> Vector:
        """Return the same numbers on the devices and in the memory layout of ``like``.

        A tensor that already has this device and layout is not copied.
        """
        return self.alike(_place(t, u) for t, u in zip(self.tensors, like.tensors, strict=True))

    def on(self, device: torch.device) -> Vector:
        """Return the same numbers on a device; this vector itself if they are there already."""
        if all(t.device == device for t in self.tensors):
            return self
        return self.alike((t.to(device) for t in self.tensors), self.names)

    def zeros_like(self) -> Vector:
        """Return zeros in this vector's shapes, types and memory layout."""
        return self.alike(torch.zeros_like(t) for t in self.tensors)

    def zeros(self, name: str) -> Vector:
        """Return zeros in the shapes of the vector of this name, in this vector's types."""
        shapes = [shape_in(name, t.shape) for t in self.tensors]
        return Vector(
            torch.zeros_like(t) if shape == list(t.shape) else t.new_zeros(shape)
            for t, shape in zip(self.tensors, shapes, strict=True)
        )

    def counter(self) -> Vector:
        """Return a zero for each tensor, in a type that counts steps without error."""
        kinds = [torch.promote_types(t.dtype, torch.float32) for t in self.tensors]
        return Vector(
            torch.zeros(shape_in(EACH, t.shape), dtype=kind, device=t.device)
            for t, kind in zip(self.tensors, kinds, strict=True)
        )

    def full_like(self, value: float) -> Vector:
        """Return the constant ``value`` in this vector's shapes, types and memory layout."""
        return self.alike(torch.full_like(t, value) for t in self.tensors)

    def take(self, positions: Sequence[int]) -> Vector:
        """Return the tensors at ``positions`` as a vector that shares memory."""
        names = [self.names[i] for i in positions] if self.names else ()
        return self.alike((self.tensors[i] for i in positions), names)

    def numel(self) -> int:
        """Return the number of elements over all tensors."""
        return sum(t.numel() for t in self.tensors)

    def nbytes(self) -> int:
        """Return the number of bytes that this vector takes when it is sent uncoded."""
        return sum(t.numel() * t.element_size() for t in self.tensors)

    def equal(self, other: Vector) -> bool:
        """Return whether both hold the same bits (shapes, types and values): 0 is not -0."""
        return len(self) == len(other) and all(
            a.dtype == b.dtype and torch.equal(_bits(a), _bits(b))
            for a, b in zip(self.tensors, other.tensors, strict=True)
        )


_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def _bits(t: Tensor) -> Tensor:
    return t.view(_WORDS[t.element_size()]) if t.is_floating_point() else t


def _operand(value: float | Vector) -> float | list[Tensor]:
    return value.tensors if isinstance(value, Vector) else value


def _place(t: Tensor, like: Tensor) -> Tensor:
    if t.shape != like.shape:  # few numbers have no memory layout to match
        return t.to(like.device)
    if t.device == like.device and t.stride() == like.stride():
        return t
    return torch.empty_like(like, dtype=t.dtype).copy_(t)


ROWS = "_rows"
"""The end of the name of a vector with one number per row of each tensor."""

EACH = "_each"
"""The end of the name of a vector with one number per tensor."""


def is_small(name: str) -> bool:
    """Return whether the vector of this name has next to no elements."""
    return name.endswith((ROWS, EACH))


def by_rows(shape: Sequence[int]) -> list[int]:
    """Return the shape of one number per row: those of one dimension keep their elements."""
    return [shape[0], *(1 for _ in shape[1:])] if len(shape) > 1 else list(shape)


def shape_in(name: str, shape: Sequence[int]) -> list[int]:
    """Return the shape that a tensor of the parameters has in the vector of this name."""
    if name.endswith(EACH):
        return [1 for _ in shape]
    return by_rows(shape) if name.endswith(ROWS) else list(shape)


class Vectors(dict[str, Vector]):
    """Named vectors, read and written as attributes: ``s.g_a``, ``c.y``."""

    __slots__ = ()

    def __getattr__(self, name: str) -> Vector:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(
                f"no vector named {name!r} here; there are {', '.join(self) or 'none'}"
            ) from None

    def __setattr__(self, name: str, vector: Vector) -> None:
        if not isinstance(vector, Vector):  # not require(): to print a vector takes long
            raise FedladaError(
                f"{name} is {vector!r:.100}, and it must be a vector; to count steps, set"
                f" client.{name}_each = client.y.counter() in begin, and add 1 to each of its"
                " tensors in step"
            )
        self[name] = vector

    def only(self, names: Iterable[str]) -> Vectors:
        """Return the vectors of these names, in this order."""
        return Vectors((name, getattr(self, name)) for name in names)

    def take(self, positions: Sequence[int]) -> Vectors:
        """Return every vector's tensors at ``positions``, sharing memory."""
        return Vectors((name, vector.take(positions)) for name, vector in self.items())

    def on(self, device: torch.device) -> Vectors:
        """Return the same vectors on a device."""
        return Vectors((name, vector.on(device)) for name, vector in self.items())

    def nbytes(self) -> int:
        """Return the number of bytes that all vectors take when they are sent uncoded."""
        return sum(vector.nbytes() for vector in self.values())
