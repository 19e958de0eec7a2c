"""The base of engines that stand around another one and change what its clients do."""

from __future__ import annotations

from collections.abc import Sequence

from ..protocol.engine import Engine
from ..protocol.messages import Task

__all__ = ["Around"]


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

    def commit(self, task: Task, clients: Sequence[int]) -> None:
        """Pass the call on to the engine."""
        self._engine.commit(task, clients)
