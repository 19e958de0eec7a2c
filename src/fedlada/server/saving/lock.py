"""A lock that lets one run at a time use a directory.

Another process is refused.  Another run of the same process takes the directory over, for example
when a notebook cell is run again; the earlier run can then no longer save.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar
from weakref import WeakValueDictionary

from filelock import FileLock, Timeout

from ...errors import FedladaError

__all__ = ["DirectoryInUse", "DirectoryLock"]

POLL = 0.1
"""Seconds between two attempts to lock a directory that another process holds."""


class DirectoryInUse(FedladaError):
    """Another run holds the directory."""


class DirectoryLock:
    """Holds a directory from :meth:`take` to :meth:`release`, or as long as this object exists."""

    _mine: ClassVar[WeakValueDictionary[Path, DirectoryLock]] = WeakValueDictionary()

    def __init__(self, directory: Path, *, wait: float = 0.0, name: str = "lock") -> None:
        """Wait up to ``wait`` seconds for another process that still holds the directory.

        The lock is the file ``name`` in the directory.
        """
        self._file, self._wait = directory.resolve() / name, wait
        self._lock: FileLock | None = None

    @property
    def taken(self) -> bool:
        """Whether this object holds the directory."""
        return self._lock is not None

    def take(self, *, hand_over: bool = True) -> None:
        """Make the directory and lock it.

        Unless ``hand_over``, another run of the same process is refused as well.
        """
        if self.taken:
            return
        self._file.parent.mkdir(parents=True, exist_ok=True)
        before = self._mine.get(self._file)
        if before is not None:
            if not hand_over:
                raise self._in_use()
            before.release()
        lock = FileLock(self._file, mode=0o600, thread_local=False)
        try:
            lock.acquire(timeout=self._wait, poll_interval=POLL)
        except Timeout:
            raise self._in_use() from None
        self._lock = lock
        self._mine[self._file] = self

    def release(self) -> None:
        """Release the directory for another run."""
        if self._lock is not None:
            self._lock.release(force=True)
            self._lock = None
            self._mine.pop(self._file, None)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the directory, and refuse every other run, while the ``with`` block runs."""
        self.take(hand_over=False)
        try:
            yield
        finally:
            self.release()

    def _in_use(self) -> DirectoryInUse:
        return DirectoryInUse(
            f"another process is running in {self._file.parent}; wait for it, stop it, or use"
            " another directory"
        )

    def __del__(self) -> None:
        if getattr(self, "_lock", None) is not None:
            self.release()
