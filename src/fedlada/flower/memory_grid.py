"""A Flower grid in this process, to test both halves of an app without Ray or a network."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Iterable, Mapping

from flwr.app import Context, Error, Message, RecordDict
from flwr.app.user_config import UserConfigValue
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid

from .private_api import Run, set_task

__all__ = ["MemoryGrid"]


class MemoryGrid(Grid):
    """A grid whose nodes run a ClientApp when their reply is pulled."""

    def __init__(
        self,
        app: ClientApp,
        *,
        nodes: int,
        node_config: Mapping[str, UserConfigValue] | None = None,
        run_config: Mapping[str, UserConfigValue] | None = None,
    ) -> None:
        set_task(run=1, node=1, task=1)  # Flower creates a Message only for a task
        self.app = app
        self.contexts = {
            1000 + i: Context(
                run_id=1,
                node_id=1000 + i,
                node_config={
                    "partition-id": i,
                    "num-partitions": nodes,
                    **(node_config or {}),
                },
                state=RecordDict(),
                run_config=dict(run_config or {}),
            )
            for i in range(nodes)
        }
        self._pushed: dict[str, Message] = {}
        self._one_at_a_time = threading.Lock()

    def set_run(self, run: Run) -> None:
        raise NotImplementedError("a MemoryGrid belongs to no run")

    @property
    def run(self) -> Run:
        raise NotImplementedError("a MemoryGrid belongs to no run")

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        return list(self.contexts)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        ids = []
        for message in messages:
            message.metadata.__dict__["_message_id"] = uuid.uuid4().hex
            self._pushed[message.metadata.message_id] = message
            ids.append(message.metadata.message_id)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        replies = []
        for message_id in message_ids:
            reply = self.reply(self._pushed[message_id])
            if reply is not None:
                del self._pushed[message_id]
                replies.append(reply)
        return replies

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        end = None if timeout is None else time.monotonic() + timeout
        waiting = list(self.push_messages(messages))
        replies: list[Message] = []
        while waiting and (end is None or time.monotonic() < end):
            replies += self.pull_messages(waiting)
            waiting = [message_id for message_id in waiting if message_id in self._pushed]
        return replies

    def reply(self, message: Message) -> Message | None:
        """Return the node's reply, or None if it is not ready yet."""
        with self._one_at_a_time:  # the clients share torch's random numbers
            try:
                return self.app(message, self.contexts[message.metadata.dst_node_id])
            except Exception as error:  # as Flower does for a ClientApp that raises
                return Message(Error(code=2, reason=f"{type(error)}:<'{error}'>"), reply_to=message)
