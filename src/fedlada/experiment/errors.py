"""What a user reads instead of a traceback."""

from __future__ import annotations

__all__ = ["ExperimentError", "missing"]


class ExperimentError(ValueError):
    """Something in an experiment's file, directory or command is wrong; the message says what."""


def missing(error: ModuleNotFoundError, need: str, install: str) -> ExperimentError:
    """Turn the failed import of an optional library into advice."""
    return ExperimentError(
        f"{need} needs {error.name}, which is not installed: run pip install {install}."
    )
