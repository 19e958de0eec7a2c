"""Calls a client's training loop; an error inside it names the client and the round."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from ..errors import FedladaError

__all__ = ["TrainingError", "named_errors"]

LIBRARIES = (str(Path(torch.__file__).parent), str(Path(__file__).parents[1]))
"""Directories whose lines are not the user's."""


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
                f"{where}: {type(error).__name__} at {_place(error)}: {error}. Mend that line of"
                " the training, or the data that it is given"
            )
        named.client, named.round = client, round + 1
        raise named from error


def _place(error: Exception) -> str:
    """Return the file and line that raised an error, the user's rather than a library's."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith(LIBRARIES)]
    frame = (own or frames)[-1]
    return f"{frame.filename}, line {frame.lineno}"
