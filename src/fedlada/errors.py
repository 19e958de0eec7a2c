"""The package's errors: each message gives the value, what is allowed and what to do next."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterable
from contextvars import ContextVar
from difflib import get_close_matches

__all__ = [
    "MOST",
    "PLACE",
    "ExperimentError",
    "FedladaError",
    "MissingExtra",
    "check_counts",
    "missing_extra",
    "nearest",
    "require",
    "require_known",
    "warn_here",
]

PLACE: ContextVar[str] = ContextVar("PLACE", default="")
"""The client whose data or training run at the moment, for warnings."""


class FedladaError(ValueError):
    """An error that the caller can fix; the message says what is wrong and how to fix it."""


class ExperimentError(FedladaError):
    """Something in an experiment's file, directory or command is wrong."""


class MissingExtra(FedladaError, ImportError):
    """An optional library is not installed; the message says what to install."""

    def __init__(self, sentence: str, *, name: str | None = None) -> None:
        ImportError.__init__(self, sentence, name=name)


def require(condition: bool, sentence: str) -> None:
    """Raise :class:`FedladaError` with this sentence unless the condition holds."""
    if not condition:
        raise FedladaError(sentence)


def warn_here(sentence: str) -> None:
    """Warn, and name the client at whose data or training this happens, if any."""
    place = PLACE.get()
    warnings.warn(f"{place}: {sentence}" if place else sentence, stacklevel=2)


MOST = 2**53
"""Counts must be below this: larger ones are not exact as floating-point numbers."""


def check_counts(owner: object, *names: str) -> None:
    """Raise an error if one of these attributes is neither None nor a positive whole number."""
    for name in names:
        value = getattr(owner, name)
        require(
            value is None or (isinstance(value, int) and 0 < value < MOST),
            f"{name} is {value!r}; it must be a positive whole number below 2^53",
        )


def require_known(word: str, allowed: Collection[str], wrong: str) -> None:
    """Raise an error with what is wrong, and the nearest valid name, unless the word is one."""
    if word not in allowed:
        raise FedladaError(f"{wrong}; {nearest(word, allowed)}")


def nearest(word: str, allowed: Iterable[str]) -> str:
    """Return the end of a sentence about a wrong name: the nearest valid name, then all names."""
    names = sorted(allowed)
    close = get_close_matches(word, names, n=1)
    return (f"did you mean {close[0]!r}? " if close else "") + f"There are {', '.join(names)}"


def missing_extra(error: ModuleNotFoundError, need: str, install: str) -> MissingExtra:
    """Return an error that says how to install a missing optional library.

    ``need`` is the feature that the user asked for and ``install`` is the argument of pip.
    """
    return MissingExtra(
        f'{need} needs {error.name}, which is not installed: run pip install "{install}".',
        name=error.name,
    )
