"""Pulls replies one at a time as they arrive; a stuck reply does not delay the others."""

from __future__ import annotations

import itertools
import math
import queue
import threading
import time
from collections import deque
from collections.abc import Collection, Iterator
from typing import NamedTuple

from flwr.app import Message
from flwr.serverapp import Grid

__all__ = ["POLL", "Missing", "Pull", "Unreadable", "answers"]

POLL = 0.2
"""Largest number of seconds between two polls for replies."""
QUICK = 0.01
"""Smallest number of seconds; in between, it is a tenth of the time since the last reply."""
STUCK = 2.0
"""Seconds inside one pull after which another thread pulls the other replies."""
THREADS = 16
"""Largest number of pulls at a time, including stuck ones."""


class Unreadable:
    """A reply that arrived but that Flower itself cannot read."""


Found = tuple[str, Message | Unreadable]
"""The id of the answered message, and its reply, whose own claim of the id is not trusted."""


class Missing(NamedTuple):
    """A message without a reply, and why."""

    reason: str
    reached: bool = True


def answers(
    grid: Grid, messages: dict[int, Message], end: float | None
) -> Iterator[tuple[int, Message | Unreadable | Missing]]:
    """Push messages, whose memory is freed, and yield the reply to each by its key."""
    pushed = list(zip(grid.push_messages(list(messages.values())), messages, strict=True))
    messages.clear()
    pending = {message_id: key for message_id, key in pushed if message_id}
    for message_id, key in pushed:
        if not message_id:
            yield key, Missing("not sent", reached=False)
    with Pull(grid, list(pending)) as replies:
        for message_id, message in replies.until(end):
            yield pending.pop(message_id), message
            del message
    for key in pending.values():
        yield key, Missing("deadline")


class Pull:
    """Yields replies to messages as they arrive; messages can be added and dropped meanwhile."""

    def __init__(self, grid: Grid, ids: Collection[str] = ()) -> None:
        self._grid, self._left = grid, set(ids)
        self._waiting = deque(ids)
        self._found: queue.Queue[Found | Exception] = queue.Queue(maxsize=1)
        self._closed = threading.Event()
        self._since: dict[int, float] = {}
        self._numbers = itertools.count()

    def close(self) -> None:
        """Pull nothing more."""
        self._closed.set()

    def __enter__(self) -> Pull:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def add(self, ids: Collection[str]) -> None:
        """Pull the replies to more messages."""
        self._left.update(ids)
        self._waiting.extend(ids)

    def drop(self, message_id: str) -> None:
        """Pull the reply to this message no longer."""
        self._left.discard(message_id)

    def until(self, end: float | None) -> Iterator[Found]:
        """Yield replies until all have arrived, or until this moment."""
        while self._left:
            now = time.monotonic()
            if end is not None and now >= end:
                return
            since = list(self._since.values())  # a copy, since threads change it
            stuck = all(now - began > STUCK for began in since)
            if self._waiting and len(since) < THREADS and stuck:
                self._start()
            try:
                found = self._found.get(timeout=POLL)
            except queue.Empty:
                continue
            if isinstance(found, Exception):
                raise found
            if found[0] in self._left:
                self._left.remove(found[0])
                yield found
            del found

    def _start(self) -> None:
        # A daemon thread: a pull can hang for minutes on a reply that is stuck half-way and cannot
        # be interrupted; neither the round nor the process should wait for it.
        number = next(self._numbers)
        self._since[number] = time.monotonic()
        threading.Thread(target=self._work, args=(number,), daemon=True).start()

    def _work(self, number: int) -> None:
        looked, last = 0, time.monotonic()
        while not self._closed.is_set():
            try:
                message_id = self._waiting.popleft()
            except IndexError:  # other threads have the rest
                break
            if message_id not in self._left:  # dropped
                continue
            self._since[number] = time.monotonic()
            messages: list[Message | Unreadable]
            try:
                messages = list(self._grid.pull_messages([message_id]))
            except Exception as error:
                messages = [Unreadable()]
                if not self._answers():  # the grid failed: the main thread raises the error
                    self._hand_over(error)
                    break
            # This thread is not stuck: it waits for the main thread or for replies to arrive.
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
        """Return whether the grid itself responds."""
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
