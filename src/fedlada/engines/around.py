"""Engines that stand around another one and change what its clients do."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

from ..errors import FedladaError
from ..protocol.engine import Engine, MaskedEngine
from ..protocol.messages import Answer, Failure, Reply, Task

__all__ = ["Around", "Complete", "IncompleteRound"]

A = TypeVar("A", Reply, Answer)


class Around:
    """Has the clients of another engine; a subclass defines ``exchange``."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    @property
    def clients(self) -> int:
        """Number of clients that the engine has now."""
        return self._engine.clients

    @property
    def keeps(self) -> bool:
        """Whether its clients keep vectors between rounds."""
        return self._engine.keeps

    @property
    def waits(self) -> bool:
        """Whether the engine also yields late replies to earlier tasks."""
        return getattr(self._engine, "waits", False)

    def name(self, client: int) -> str:
        """Return what the engine calls a client in records."""
        name: Callable[[int], str] = getattr(self._engine, "name", str)
        return name(client)

    def ask(
        self, task: Task, step: str, messages: Mapping[int, bytes]
    ) -> Iterator[Answer | Failure]:
        """Ask the clients of the engine about the masks of a round."""
        assert isinstance(self._engine, MaskedEngine)
        return self._engine.ask(task, step, messages)

    def commit(self, task: Task, clients: Sequence[int]) -> None:
        """Pass the call on to the engine."""
        self._engine.commit(task, clients)


class IncompleteRound(FedladaError):
    """A client failed where every client must reply."""


class Complete(Around):
    """Ends the run when a client fails: the result would differ from that of a run in process.

    When the run is started again, it continues after the last finished round.
    """

    def exchange(self, task: Task, cohort: Sequence[int]) -> Iterator[Reply | Failure]:
        """Yield the replies of the engine; raise an error if a client fails."""
        return _complete(self._engine.exchange(task, cohort), task)

    def ask(
        self, task: Task, step: str, messages: Mapping[int, bytes]
    ) -> Iterator[Answer | Failure]:
        """Yield the answers of the engine; raise an error if a client fails."""
        return _complete(super().ask(task, step, messages), task)


def _complete(answers: Iterable[A | Failure], task: Task) -> Iterator[A | Failure]:
    for answer in answers:
        if isinstance(answer, Failure):
            why = f"{answer.reason}: {answer.cause}" if answer.cause else f"{answer.reason}."
            raise IncompleteRound(f"client {answer.client} failed in round {task.round + 1}: {why}")
        yield answer
