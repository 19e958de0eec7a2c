"""Atomic writes: after a crash a file has either its new content or its old content."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["sync_names", "write"]


def write(path: Path, content: bytes) -> None:
    """Write ``content`` to a file beside ``path``, sync it to the disk and rename it."""
    part = path.with_name(path.name + ".part")
    try:
        with part.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
        sync_names(path.parent)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise OSError(error.errno, error.strerror, str(path)) from None


def sync_names(directory: Path) -> None:
    """Sync the names in a directory to the disk."""
    opened = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
