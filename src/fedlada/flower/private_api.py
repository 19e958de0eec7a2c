"""All uses of Flower's private API: the task of this process, and messages as bytes.

No other module has private imports of flwr, so a new version of Flower is checked here.
"""

from __future__ import annotations

from flwr.app import Context, Message
from flwr.common.serde import (
    context_from_proto,
    context_to_proto,
    message_from_proto,
    message_to_proto,
)
from flwr.proto.message_pb2 import Context as ContextBytes, Message as MessageBytes
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

__all__ = ["Run", "current_task", "packed", "set_task", "unpacked"]


def set_task(run: int, node: int, task: int) -> None:
    """Set the task of this process: Flower creates messages only for this task."""
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = run, node, task


def current_task() -> tuple[int, int, int]:
    """Return the run, the node and the task of this process."""
    return TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id


def packed(message: Message, context: Context) -> tuple[bytes, bytes]:
    """Return a message and a context as bytes, in Flower's own format."""
    return (
        message_to_proto(message).SerializeToString(),
        context_to_proto(context).SerializeToString(),
    )


def unpacked(message: bytes, context: bytes) -> tuple[Message, Context]:
    """Return the message and the context that were packed."""
    return (
        message_from_proto(MessageBytes.FromString(message)),
        context_from_proto(ContextBytes.FromString(context)),
    )
