"""The contract: a reply must answer this task in the agreed form before it is measured."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

import torch

from ...algorithms import Algorithm, Vector
from ...protocol.federated import BUFFERS
from ...protocol.messages import MOST_METRICS, Reply, Task, well_named
from ...protocol.strict import MOST

__all__ = ["Contract", "counted", "measured", "up_like"]


class Contract:
    """Checks that each reply is a client's first answer to this task, with the agreed vectors."""

    def __init__(self, algorithm: Algorithm, task: Task, cohort: Collection[int]) -> None:
        self._task, self._cohort = task, frozenset(cohort)
        self._answered: set[int] = set()
        self.like = up_like(algorithm, task)
        types = {t.dtype for t in task.vectors.x}
        # Vectors are multiplied by lr_sum, and torch raises an error if their type cannot hold it.
        self._largest = min((torch.finfo(dtype).max for dtype in types), default=math.inf)

    def breach(self, reply: Reply) -> str | None:
        """Return what is wrong with a reply, or None if nothing is."""
        return self._not_to_this_task(reply) or self._not_as_agreed(reply)

    def answered(self, client: int) -> bool:
        """Return whether the client has answered this task, with a valid reply or not."""
        return client in self._answered

    def _not_to_this_task(self, reply: Reply) -> str | None:
        if (reply.round, reply.nonce) != (self._task.round, self._task.nonce):
            return "reply to another task"
        if reply.client in self._answered:
            return "second reply"
        if reply.client not in self._cohort:
            return "not asked"
        self._answered.add(reply.client)
        return None

    def _not_as_agreed(self, reply: Reply) -> str | None:
        if set(reply.vectors) != set(self.like):
            return "wrong vectors"
        if not all(_alike(vector, self.like[name]) for name, vector in reply.vectors.items()):
            return "wrong shapes or types"
        if not (counted(reply.examples) and counted(reply.steps)):
            return "impossible counts"
        if not (_is_number(reply.lr_sum) and 0 < reply.lr_sum <= self._largest):
            return "impossible counts"
        if not (_is_number(reply.seconds) and 0 <= reply.seconds < math.inf):
            return "impossible counts"
        return None if measured(reply.metrics) else "wrong metrics"


def up_like(algorithm: Algorithm, task: Task) -> dict[str, Vector]:
    """Return, for each ``up`` vector, a vector with the shapes and types that it must have."""
    like = dict.fromkeys(algorithm.up, task.vectors.x)
    like |= {moment.up: task.vectors[moment.of] for moment in algorithm.moments}
    return like | ({BUFFERS: task.vectors.buffers} if BUFFERS in task.vectors else {})


def _alike(vector: Vector, like: Vector) -> bool:
    return len(vector) == len(like) and all(
        t.shape == u.shape and t.dtype == u.dtype and t.layout == u.layout
        for t, u in zip(vector, like, strict=True)
    )


def counted(number: object) -> bool:
    """Return whether a client can have counted this: a positive integer below ``MOST``."""
    return type(number) is int and 0 < number < MOST


def measured(metrics: Mapping[str, float]) -> bool:
    """Return whether a client's metrics are few numbers with short names."""
    return len(metrics) <= MOST_METRICS and all(
        well_named(name) and _is_number(value) for name, value in metrics.items()
    )


def _is_number(value: object) -> bool:
    return isinstance(value, float) or (type(value) is int and abs(value) < MOST)
