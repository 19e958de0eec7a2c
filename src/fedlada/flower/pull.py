"""Pulling replies as they come: one at a time, by threads that a stuck reply cannot hold up."""

from __future__ import annotations

import itertools
import math
import queue
import threading
import time
from collections import deque
from collections.abc import Iterator

from flwr.app import Message
from flwr.serverapp import Grid

__all__ = ["POLL", "Pull", "Unreadable"]

POLL = 0.2
"""Seconds between two looks at replies that are not there yet, at most."""
QUICK = 0.01
"""And at least; in between, a tenth of the time since the last reply came."""
STUCK = 2.0
"""After so many seconds inside one pull, another thread looks after the other replies."""
THREADS = 16
"""At most so many pulls, stuck ones included, at a time."""


class Unreadable:
    """A reply that came and that Flower itself cannot read."""


Found = tuple[str, Message | Unreadable]
"""What came, and the message it answers: what a reply says of that itself is not trusted."""


class Pull:
    """Replies to messages, as they come, until all have come or the time is up."""

    def __init__(self, grid: Grid, ids: list[str], end: float | None) -> None:
        self._grid, self._left, self._end = grid, len(ids), end
        self._waiting = deque(ids)
        self._found: queue.Queue[Found | Exception] = queue.Queue(maxsize=1)
        self._closed = threading.Event()
        self._since: dict[int, float] = {}
        self._numbers = itertools.count()

    def __enter__(self) -> Pull:
        self._start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()

    def __iter__(self) -> Iterator[Found]:
        while self._left:
            now = time.monotonic()
            if self._end is not None and now >= self._end:
                return
            since = list(self._since.values())  # a copy: the threads come and go
            stuck = all(now - began > STUCK for began in since)
            if self._waiting and 0 < len(since) < THREADS and stuck:
                self._start()
            try:
                found = self._found.get(timeout=POLL)
            except queue.Empty:
                continue
            if isinstance(found, Exception):
                raise found
            self._left -= 1
            yield found
            del found

    def _start(self) -> None:
        # A daemon: a pull can hang for minutes on a reply that is stuck half-way, and cannot be
        # interrupted; neither the round nor the process should wait for it.
        number = next(self._numbers)
        self._since[number] = time.monotonic()
        threading.Thread(target=self._work, args=(number,), daemon=True).start()

    def _work(self, number: int) -> None:
        looked, last = 0, time.monotonic()
        while not self._closed.is_set():
            try:
                message_id = self._waiting.popleft()
            except IndexError:  # the rest is with other threads
                break
            self._since[number] = time.monotonic()
            messages: list[Message | Unreadable]
            try:
                messages = list(self._grid.pull_messages([message_id]))
            except Exception as error:
                messages = [Unreadable()]
                if not self._answers():  # then it is not the reply; the main thread raises it
                    self._hand_over(error)
                    break
            # Not stuck: it waits for the loop in the main thread, or for replies to be there.
            # Another thread would only hold one more reply.
            self._since[number] = math.inf
            if messages:
                self._hand_over((message_id, messages.pop()))
                looked, last = 0, time.monotonic()
                continue
            self._waiting.append(message_id)
            looked += 1
            if looked >= len(self._waiting):
                looked = 0
                self._closed.wait(min(POLL, max(QUICK, (time.monotonic() - last) / 10)))
        self._since.pop(number, None)

    def _answers(self) -> bool:
        """Whether the grid itself is there."""
        try:
            self._grid.get_node_ids()
        except Exception:
            return False
        return True

    def _hand_over(self, found: Found | Exception) -> None:
        while not self._closed.is_set():
            try:
                return self._found.put(found, timeout=POLL)
            except queue.Full:
                continue
