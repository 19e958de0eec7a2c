"""The directory of a node that its user alone can enter."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from ..errors import require

__all__ = ["private_directory"]


def private_directory(name: str) -> Path:
    """Create a directory in FLWR_HOME that only this user can enter, or check an existing one."""
    home = Path(os.environ.get("FLWR_HOME") or Path.home() / ".flwr").absolute()
    path = home / name
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not hasattr(os, "geteuid"):  # Windows, where the home of a user is closed to others
        return path
    status = path.lstat()
    require(
        stat.S_ISDIR(status.st_mode)
        and status.st_uid == os.geteuid()
        and not status.st_mode & 0o077,
        f"{path} must be a directory of user {os.geteuid()} that nobody else can enter (owner"
        f" {status.st_uid}, mode {stat.S_IMODE(status.st_mode):o}); remove it, or set FLWR_HOME to"
        " another directory",
    )
    return path
