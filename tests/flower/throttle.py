"""A TCP proxy on the loopback whose way up can be made slow; TLS passes through unread."""

import contextlib
import socket
import threading
import time
from types import TracebackType
from typing import Self

CHUNK = 0.1
"""Seconds' worth of bytes that a slow connection sends at a time."""


class Throttle:
    """Stands in front of ``upstream``, an ``address:port``, for the duration of a `with` block."""

    def __init__(self, upstream: str) -> None:
        host, port = upstream.split(":")
        self._upstream = host, int(port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: set[socket.socket] = set()
        self._turn = threading.Lock()
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.rate: int | None = None
        """Bytes per second, of all connections together; None for as fast as can be."""
        self.uploaded = 0
        """Bytes that went up so far."""

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.rate = None
        for each in (self._listener, *list(self._open)):
            with contextlib.suppress(OSError):  # it was closed, or its other end was
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # the listener is closed
            while True:
                node, _ = self._listener.accept()
                try:
                    superlink = socket.create_connection(self._upstream)
                except OSError:
                    node.close()
                    continue
                self._open |= {node, superlink}
                for source, sink, up in ((node, superlink, True), (superlink, node, False)):
                    threading.Thread(
                        target=self._pump, args=(source, sink, up), daemon=True
                    ).start()

    def _pump(self, source: socket.socket, sink: socket.socket, up: bool) -> None:
        with contextlib.suppress(OSError):  # either end is gone
            while data := source.recv(self._size() if up else 65536):
                if up:
                    self._wait(len(data))
                sink.sendall(data)
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_WR)

    def _size(self) -> int:
        return 65536 if self.rate is None else max(1, int(CHUNK * self.rate))

    def _wait(self, size: int) -> None:
        with self._turn:
            self.uploaded += size
            while self.rate is not None and size > 0:
                time.sleep(CHUNK)
                size -= int(CHUNK * self.rate) if self.rate is not None else size
