"""The state that the server keeps from round to round."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field

from ..algorithms import Algorithm, Vector, Vectors
from .guard.limits import History

__all__ = ["ServerState"]


@dataclass
class ServerState:
    """The state that the server keeps from round to round."""

    vectors: Vectors
    """The server's vectors; ``personal``, if there, has the first values of the personal parts."""
    round: int = 0
    """Number of rounds done."""
    updates: int = 0
    """Number of rounds that changed the model."""
    run: str = field(default_factory=lambda: secrets.token_hex(8))
    """The run's name, the same before and after it is resumed."""
    last_accepted: dict[int, int] = field(default_factory=dict)
    """The round of the last accepted reply of each client, if clients keep vectors."""
    contributed: dict[int, float] = field(default_factory=dict)
    """Each client's account with the guard, if the server sums up a vector of its replies."""
    changed: set[int] = field(default_factory=set)
    """The clients whose entries in these two changed since the last checkpoint."""
    metric_names: list[str] = field(default_factory=list)
    """The names of the clients' metrics that are on record."""
    history: History = field(default_factory=dict)
    """The guard's statistics of recent rounds."""
    variances: tuple[int, ...] = ()
    """The positions of the averaged buffers that are variances, and so are never negative."""
    time: float | None = None
    """Simulated seconds since the start of the run; None in real time."""
    resumable_from: int | None = None
    """The earliest round from which the run can be resumed; None if it cannot."""

    @classmethod
    def new(cls, algorithm: Algorithm, x: Vector, buffers: Vector | None = None) -> ServerState:
        """Return the state before the first round."""
        state = cls(algorithm.start(x))
        if buffers is not None:
            state.vectors.buffers = buffers
        return state
