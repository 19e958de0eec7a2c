"""Keeps a node's data loaded in a worker from one message to the next."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from flwr.app import Context

__all__ = ["begin", "in_worker", "kept"]

T = TypeVar("T")

_in_worker = False


def begin() -> None:
    """Mark this process as the worker of one node in one run."""
    global _in_worker
    _in_worker = True


def in_worker() -> bool:
    """Return whether this process is the worker of one node in one run."""
    return _in_worker


def kept(load: Callable[[Context], T]) -> Callable[[Context], T]:
    """Call ``load`` once in a worker, whose node and run never change, and always elsewhere."""
    values: list[T] = []

    def loaded(context: Context) -> T:
        if not _in_worker:
            return load(context)
        if not values:
            values.append(load(context))
        return values[0]

    return loaded
