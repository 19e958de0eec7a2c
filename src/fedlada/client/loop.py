"""Calls a client's training loop; an error inside it names the client and the round."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ..errors import FedladaError

__all__ = ["TrainingError", "named_errors"]


class TrainingError(FedladaError):
    """A client's data or training loop raised an error, which is this error's ``__cause__``."""

    client: int
    round: int
    """The number of the round, from 1, as in its record."""


@contextmanager
def named_errors(client: int, round: int) -> Iterator[None]:
    """Raise a :class:`TrainingError` for an error inside the block; ``round`` counts from 0."""
    try:
        yield
    except Exception as error:
        if isinstance(error, TrainingError):
            raise
        where = f"client {client}, round {round + 1}"
        if isinstance(error, FedladaError):
            named = TrainingError(f"{where}: {error}")
        else:
            named = TrainingError(
                f"{where}: {type(error).__name__} in its training loop or data: {error}. Mend the"
                " line that the traceback above this one shows"
            )
        named.client, named.round = client, round + 1
        raise named from error
