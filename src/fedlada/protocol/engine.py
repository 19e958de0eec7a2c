"""The interface between the server loop and the engine that runs the clients."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol, runtime_checkable

from .messages import Answer, Failure, Reply, Task

__all__ = ["Engine", "MaskedEngine"]


class Engine(Protocol):
    """Runs the clients of a cohort; everything distributed is behind this interface.

    An engine that also yields late replies to earlier tasks (``staleness``) has ``waits``, which is
    True: ``exchange`` starts the cohort and then yields the answers of all clients under way, and
    removes each from ``ServerState.flights`` first.
    """

    @property
    def clients(self) -> int:
        """Number of registered clients; they are numbered from 0."""
        ...

    @property
    def keeps(self) -> bool:
        """Whether clients keep vectors between rounds."""
        ...

    def exchange(self, task: Task, cohort: Sequence[int]) -> Iterator[Reply | Failure]:
        """Send the task to the cohort and yield replies as they arrive, in any order.

        The server loop may stop iterating before all have replied.
        """
        ...

    def commit(self, task: Task, clients: Sequence[int]) -> None:
        """Note that the replies of these clients were accepted and saved.

        These clients keep the vectors they staged.  The next task of each repeats this.
        """
        ...


@runtime_checkable
class MaskedEngine(Engine, Protocol):
    """An engine whose clients can send replies under masks."""

    def ask(
        self, task: Task, step: str, messages: Mapping[int, bytes]
    ) -> Iterator[Answer | Failure]:
        """Ask each of these clients about the masks of a round, and yield the answers."""
        ...
