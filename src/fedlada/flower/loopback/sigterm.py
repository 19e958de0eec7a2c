"""Let a SIGTERM leave `with` blocks in order."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["sigterm_raises"]


@contextmanager
def sigterm_raises() -> Iterator[None]:
    """Turn a SIGTERM into SystemExit, unless the program has a handler of its own.

    By default a SIGTERM ends Python at once, without stopping what Python has started.
    """
    ours = (
        threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    )
    if ours:
        signal.signal(signal.SIGTERM, _leave)
    try:
        yield
    finally:
        if ours and signal.getsignal(signal.SIGTERM) is _leave:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _leave(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)
