"""Errors of a client's training, which name the client and the round."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from ..errors import PLACE, FedladaError

__all__ = ["TrainingError", "named_errors"]

LIBRARIES = (str(Path(torch.__file__).parent), str(Path(__file__).parents[1]))
"""Directories of code that is not the user's."""


class TrainingError(FedladaError):
    """A client's data or training loop raised an error, which is this error's ``__cause__``."""

    client: int
    """The number of the client."""
    round: int
    """The number of the round, from 1, as in its record."""


@contextmanager
def named_errors(client: int, round: int, name: str = "") -> Iterator[None]:
    """Raise a :class:`TrainingError` for an error inside the block; ``round`` counts from 0.

    ``name`` is that of the client's site, if it has one.
    """
    who = f"client {client}{f' ({name})' if name else ''}"
    PLACE.set(who)
    try:
        yield
    except Exception as error:
        if isinstance(error, TrainingError):
            raise
        where = f"{who}, round {round + 1}"
        if isinstance(error, FedladaError):
            named = TrainingError(f"{where}: {error}")
        else:
            named = TrainingError(
                f"{where}: {type(error).__name__} at {_place(error)}: {error}. Fix that line, or"
                " the data that it uses"
            )
        named.client, named.round = client, round + 1
        raise named from error
    finally:
        PLACE.set("")


def _place(error: Exception) -> str:
    """Return the file and line that raised an error, in the user's code if possible."""
    frames = traceback.extract_tb(error.__traceback__)
    of_user = [frame for frame in frames if not frame.filename.startswith(LIBRARIES)]
    frame = (of_user or frames)[-1]
    return f"{frame.filename}, line {frame.lineno}"
