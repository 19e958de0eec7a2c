"""The Flower engine: it exchanges messages with a cohort over a ``Grid``.

Flower's own loops keep every reply in memory until the last one has arrived, sleep three seconds
between polls and wait without a limit.  Here a few threads pull replies one at a time.  Each reply
is passed on when it arrives and is not kept.  The deadline uses this process's clock, so a reply
that is stuck half-way cannot delay it.
"""

from __future__ import annotations

import functools
import json
import logging
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TypeVar

from flwr.app import Message, MessageType, RecordDict
from flwr.serverapp import Grid
from torch import nn

from ..errors import require
from ..protocol.codecs import MalformedReply
from ..protocol.federated import BufferPolicy, clients_keep
from ..protocol.manifest import Manifest
from ..protocol.messages import Answer, Assessment, Failure, Rejection, Reply, Task
from ..protocol.wire import send
from ..server.plan import Plan
from .attendance import Attendance, failed
from .nodes import Nodes
from .pull import POLL, Missing, Pull, Unreadable, answers
from .wire.records import (
    Assignment,
    Question,
    arrived,
    pack,
    question_record,
    read_answer,
    read_evaluation,
    read_identity,
    read_reply,
    task_record,
)

__all__ = ["GridEngine"]

log = logging.getLogger("fedlada")

R = TypeVar("R", Reply, Assessment, Answer)

SKEW = 10.0
"""Seconds by which this clock and the SuperLink's may differ.

A task expires this long after its deadline: otherwise a node that comes back would first work on
rounds that are over, and miss the current one.
"""


class GridEngine:
    """Runs cohorts on the nodes of a Flower grid; clients are numbered by partition id."""

    def __init__(
        self,
        grid: Grid,
        manifest: Manifest,
        *,
        algorithm: str,
        keeps: bool = False,
        buffers: BufferPolicy = "refuse",
        personal: Sequence[str] = (),
        deadline: float | None = None,
        wait: float = 120.0,
        nodes: int = 1,
        clients: int | None = None,
        partitions: int | None = None,
    ) -> None:
        """Find at least ``nodes`` nodes within ``wait`` seconds.

        ``algorithm`` is the algorithm's spec as JSON, for the clients; ``keeps`` says whether
        they keep vectors between rounds.  ``partitions`` is the number of nodes of the whole
        federation; without it the majority of the nodes decides.  Each node is one client, unless
        there are more ``clients``: then node i of n has clients i, i + n, i + 2n and so on.
        """
        require(
            deadline is None or deadline > 0,
            f"deadline is {deadline}; it must be positive seconds, or None for no deadline",
        )
        self.grid, self.manifest, self._algorithm = grid, manifest, algorithm
        self._buffers: BufferPolicy = buffers
        self._personal = tuple(personal)
        self.deadline = deadline
        self._nodes, self._clients, self.keeps = Nodes(partitions), clients, keeps
        self.attendance = Attendance(self._nodes.name, "reply")
        self._evaluating = Attendance(self._nodes.name, "evaluation")
        self._find(nodes, wait)

    @classmethod
    def of(
        cls,
        plan: Plan,
        grid: Grid,
        model: nn.Module,
        *,
        nodes: int,
        wait: float,
        deadline: float | None = None,
        clients: int | None = None,
        partitions: int | None = None,
    ) -> GridEngine:
        """Make the engine for a plan and a model."""
        return cls(
            grid,
            Manifest.of(model, plan.buffers, plan.personal),
            algorithm=json.dumps(plan.algorithm.spec()),
            keeps=clients_keep(plan.algorithm, plan.buffers, plan.personal),
            buffers=plan.buffers,
            personal=plan.personal,
            deadline=deadline,
            wait=wait,
            nodes=nodes,
            clients=clients,
            partitions=partitions,
        )

    @property
    def clients(self) -> int:
        """Number of clients; one per node by default."""
        return self._nodes.count if self._clients is None else self._clients

    @property
    def disagreeing(self) -> Mapping[int, int]:
        """The nodes that report another number of nodes, by partition id, and that number."""
        return self._nodes.disagreeing

    def exchange(self, task: Task, cohort: Sequence[int]) -> Iterator[Reply | Failure]:
        """Push the task to the cohort and yield replies as they arrive."""
        for answer in self._exchange(task, cohort, MessageType.TRAIN, self.reply_in(task)):
            self.attendance.note(task.round, answer.client, answer)
            yield answer
            del answer

    def reply_in(self, task: Task) -> Callable[[RecordDict], Reply]:
        """Return a function that reads a reply to a task with the same codecs."""
        return functools.partial(read_reply, manifest=self.manifest, codecs=task.codecs)

    def ask(
        self, task: Task, step: str, messages: Mapping[int, bytes]
    ) -> Iterator[Answer | Failure]:
        """Ask each of these clients about the masks of a round, and yield the answers."""
        from ..privacy.masking import context_of

        def record(client: int) -> RecordDict:
            return question_record(
                Question(
                    client=client, context=context_of(task), step=step, message=messages[client]
                )
            )

        end = self.end()
        sent, missing = self._addressed(record, list(messages), MessageType.QUERY, task.round)
        for failure in missing:
            self.attendance.note(task.round, failure.client, failure)
            yield failure
        for client, message in answers(self.grid, sent, end):
            answer = self.answer(message, client, read_answer)
            if isinstance(answer, Failure):  # who answers is noted when its reply arrives
                self.attendance.note(task.round, client, answer)
            yield answer

    def evaluate(self, task: Task, cohort: Sequence[int]) -> Iterator[Assessment | Failure]:
        """Push the model to the cohort and yield evaluations as they arrive.

        A grid that fails ends the evaluation and not the run: the next round will notice, too.
        """
        left = set(cohort)
        try:
            for answer in self._exchange(task, cohort, MessageType.EVALUATE, read_evaluation):
                left.discard(answer.client)
                self._evaluating.note(task.round, answer.client, answer)
                yield answer
        except Exception as error:
            log.warning("the evaluation ended early: %r", error)
            for client in sorted(left):
                yield Failure(client=client, reason=f"grid: {type(error).__name__}")

    def _exchange(
        self, task: Task, cohort: Sequence[int], kind: str, read: Callable[[RecordDict], R]
    ) -> Iterator[R | Failure]:
        end = self.end()
        messages, missing = self.messages(task, cohort, kind)
        yield from missing
        for client, message in answers(self.grid, messages, end):
            yield self.answer(message, client, read)
            del message

    def messages(
        self, task: Task, cohort: Sequence[int], kind: str
    ) -> tuple[dict[int, Message], list[Failure]]:
        """Return the task as a message to each client, and the clients that have no node now."""
        parcel = task.parcel or send(task.vectors, task.codecs, "down", seed=0)
        vectors, assignment = pack(parcel), self.assignment(task)

        def record(client: int) -> RecordDict:
            return task_record(assignment, vectors, self.manifest, client=client)

        return self._addressed(record, cohort, kind, task.round)

    def _addressed(
        self, record: Callable[[int], RecordDict], cohort: Sequence[int], kind: str, round: int
    ) -> tuple[dict[int, Message], list[Failure]]:
        self.look_for(cohort)
        messages, missing = dict[int, Message](), list[Failure]()
        for client in cohort:
            node = self.node(client)
            if node is None:
                missing.append(Failure(client=client, reason="not connected", reached=False))
                continue
            messages[client] = self.message(record(client), node, kind, round)
        return messages, missing

    def end(self) -> float | None:
        """Return when a round that begins now must end, by this process's clock."""
        return None if self.deadline is None else time.monotonic() + self.deadline

    def look_for(self, cohort: Sequence[int]) -> None:
        """Ask new nodes for their partition ids if a node of the cohort is not connected."""
        if any(self.node(client) is None for client in cohort):
            self._ask_new_nodes(wait=5.0)
        elif self.disagreeing:  # nodes that connected since may decide otherwise
            self._ask_new_nodes(wait=1.0)

    def assignment(self, task: Task) -> Assignment:
        """Return the task with the settings that its receivers need."""
        return Assignment(
            task=task,
            algorithm=self._algorithm,
            buffers=self._buffers,
            personal=self._personal,
        )

    def commit(self, task: Task, clients: Sequence[int]) -> None:
        """Do nothing: each client learns it with its next task."""

    def answer(
        self, message: Message | Unreadable | Missing, client: int, read: Callable[[RecordDict], R]
    ) -> R | Failure:
        """Return what a client answered, or why it did not."""
        if isinstance(message, Missing):
            return Failure(client=client, reason=message.reason, reached=message.reached)
        if isinstance(message, Unreadable):
            return Rejection(client=client, reason="cannot be read")
        if message.has_error():
            return failed(client, message.error)
        try:
            reply = read(message.content)
        except MalformedReply as error:
            return Rejection(client=client, reason=str(error), nbytes=arrived(message.content))
        if reply.client != client:
            nbytes = arrived(message.content)
            return Rejection(client=client, reason="reply for another client", nbytes=nbytes)
        return reply

    def _find(self, nodes: int, wait: float) -> None:
        end = time.monotonic() + wait
        while len(self._nodes) < nodes:
            self._ask_new_nodes(wait=max(end - time.monotonic(), 1.0))
            if time.monotonic() > end:
                break
            if len(self._nodes) < nodes:
                time.sleep(POLL)
        require(
            len(self._nodes) >= nodes,
            f"{len(self._nodes)} nodes answered within {wait} s, but {nodes} are needed; start more"
            " SuperNodes, wait longer, or require fewer nodes",
        )

    def _ask_new_nodes(self, wait: float) -> None:
        """Ask new nodes for their partition ids, and count the partitions that they report."""
        connected = dict.fromkeys(self.grid.get_node_ids())
        new = self._nodes.strangers(connected)
        if new:
            self._ask(new, connected, wait)
        self._nodes.recount(connected)

    def _ask(self, new: Sequence[int], connected: Collection[int], wait: float) -> None:
        ids = self.grid.push_messages(
            [Message(RecordDict(), node, MessageType.QUERY, group_id="fedlada") for node in new]
        )
        nodes = dict(zip(ids, new, strict=True))
        with Pull(self.grid, list(nodes)) as replies:
            for message_id, message in replies.until(time.monotonic() + wait):
                if isinstance(message, Unreadable):
                    continue
                if message.has_error():
                    error = failed(0, message.error)
                    self._nodes.doubt(nodes[message_id], error.cause or error.reason)
                    continue
                try:
                    partition, partitions, site = read_identity(message.content)
                except MalformedReply as error:
                    self._nodes.doubt(nodes[message_id], str(error))
                    continue
                self._nodes.place(nodes[message_id], partition, partitions, connected, site)

    def node(self, client: int) -> int | None:
        """Return the node of a client; the number of clients may have changed since the draw."""
        return self._nodes.node(client) if client < self.clients else None

    def name(self, client: int) -> str:
        """Return the number of a client, and its site if its node has named one: ``3 (Ulm)``."""
        return self._nodes.name(client) if self._clients is None else str(client)

    def partition(self, client: int) -> int:
        """Return the partition id of a client's node."""
        return client % (self._nodes.count or 1)

    def message(self, record: RecordDict, node: int, kind: str, round: int) -> Message:
        ttl = None if self.deadline is None else self.deadline + SKEW
        return Message(record, node, kind, ttl=ttl, group_id=str(round + 1))
