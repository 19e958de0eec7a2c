"""An engine that requires a reply from every client, as in process."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..errors import FedladaError
from ..protocol.messages import Failure, Reply, Task
from .around import Around

__all__ = ["Complete", "IncompleteRound"]


class IncompleteRound(FedladaError):
    """A client failed where every client must reply."""


class Complete(Around):
    """Ends the run when a client fails: the result would differ from that of a run in process.

    When the run is started again, it continues after the last finished round.
    """

    def exchange(self, task: Task, cohort: Sequence[int]) -> Iterator[Reply | Failure]:
        """Yield the replies of the engine; raise an error if a client fails."""
        for reply in self._engine.exchange(task, cohort):
            if isinstance(reply, Failure):
                raise IncompleteRound(
                    f"client {reply.client} failed in round {task.round + 1}: {reply.reason}."
                )
            yield reply
