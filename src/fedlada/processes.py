"""This process: it keeps freed memory for the next step, and ends together with its parent."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import platform
import threading
from multiprocessing.connection import wait

__all__ = ["end_with_parent", "keep_memory"]

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of malloc.h
LARGEST_FROM_HEAP = 2**25  # the most that glibc allows
NEVER = 2**30


def end_with_parent() -> None:
    """Let this process end as soon as its parent has ended, even if that was killed."""
    threading.Thread(target=_wait_and_end, daemon=True).start()


def _wait_and_end() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)


def keep_memory() -> bool:
    """Tell glibc's malloc to keep what is freed; return whether there is such a malloc.

    Otherwise the activations of every step go back to the system and come again page by page,
    which can cost a small model on a CPU a tenth of its time.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    return bool(mallopt(M_MMAP_THRESHOLD, LARGEST_FROM_HEAP) and mallopt(M_TRIM_THRESHOLD, NEVER))
