"""Files that are whole and on the disk, or not there at all."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["write"]


def write(path: Path, content: bytes) -> None:
    """Write beside the place, to the disk, and move it there."""
    part = path.with_name(path.name + ".part")
    try:
        with part.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
        _sync(path.parent)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise OSError(error.errno, error.strerror, str(path)) from None


def _sync(directory: Path) -> None:
    """The names in a directory, too, are on the disk."""
    opened = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
