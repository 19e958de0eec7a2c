"""Faults for testing a federation: clients that drop out, repeat replies, break and lie.

``Faulty`` stands between the server loop and any engine and replaces honest replies by faulty
ones where a plan says so.  The plan is a function of (round, client), so faults are repeatable.

>>> engine = Faulty(engine, at_random(seed=1, rates={"drop out": 0.1, "nan": 0.05}))
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from ..algorithms import Vector, Vectors
from ..engines.around import Around
from ..errors import require, require_known
from ..protocol.engine import Engine
from ..protocol.messages import Failure, Reply, Task
from ..protocol.seeds import seed_of

__all__ = [
    "BEYOND",
    "EXAGGERATED",
    "FAULTS",
    "REJECTED",
    "REPEATED",
    "FaultPlan",
    "Faulty",
    "at_random",
]

Fault = Callable[[Reply, Reply | None], list[Reply | Failure]]
"""Maps an honest reply, and an earlier one of the client if any, to what arrives instead."""

FaultPlan = Callable[[int, int], str | None]
"""Maps a round (counted from 0) and a client to the name of a fault, or None for no fault."""


class Faulty(Around):
    """An engine whose clients misbehave as the plan says."""

    def __init__(self, engine: Engine, plan: FaultPlan) -> None:
        super().__init__(engine)
        self._plan = plan
        self._earlier: dict[int, Reply] = {}

    def exchange(self, task: Task, cohort: Sequence[int]) -> Iterator[Reply | Failure]:
        """Yield the replies of the engine with the planned faults applied."""
        for reply in self._engine.exchange(task, cohort):
            name = self._plan(task.round, reply.client)
            if isinstance(reply, Failure) or name is None:
                yield reply
            else:
                yield from FAULTS[name](reply, self._earlier.get(reply.client))
            if isinstance(reply, Reply):
                self._earlier[reply.client] = reply


def at_random(*, seed: int, rates: Mapping[str, float]) -> FaultPlan:
    """Return a plan in which each fault has its own probability, at most one at a time."""
    for name in rates:
        require_known(name, FAULTS, f"there is no fault {name!r}")
    require(sum(rates.values()) <= 1, f"the rates add up to {sum(rates.values())}, above 1")

    def plan(round: int, client: int) -> str | None:
        drawn = random.Random(seed_of(seed, "fault", round, client)).random()
        for name, rate in rates.items():
            drawn -= rate
            if drawn < 0:
                return name
        return None

    return plan


def _changed(change: Callable[[Vector], Vector], *, only: str | None = None) -> Fault:
    """Return a fault in all vectors, or in those whose name starts with ``only``."""

    def fault(reply: Reply, _: Reply | None) -> list[Reply | Failure]:
        vectors = Vectors(
            (name, change(vector) if only is None or name.startswith(only) else vector)
            for name, vector in reply.vectors.items()
        )
        return [replace(reply, vectors=vectors)]

    return fault


def _said(**fields: object) -> Fault:
    """Return a fault in the numbers beside the vectors."""
    return lambda reply, _: [replace(reply, **fields)]  # type: ignore[arg-type]


def _one_element(value: float) -> Callable[[Vector], Vector]:
    def change(vector: Vector) -> Vector:
        changed = vector.clone()
        changed.tensors[-1].reshape(-1)[-1] = value
        return changed

    return change


def _first_tensor(change: Callable[[Tensor], Tensor]) -> Callable[[Vector], Vector]:
    return lambda vector: Vector([change(vector.tensors[0]), *vector.tensors[1:]])


def _all_tensors(change: Callable[[Tensor], Tensor]) -> Callable[[Vector], Vector]:
    return lambda vector: Vector(change(t) for t in vector)


def _extreme(vector: Vector) -> Vector:
    """Return the largest finite numbers, whose products are infinities of both signs."""
    return Vector(
        torch.full_like(t, (-1) ** i * 0.9 * torch.finfo(t.dtype).max) for i, t in enumerate(vector)
    )


def _missing(reply: Reply, _: Reply | None) -> list[Reply | Failure]:
    return [replace(reply, vectors=Vectors(list(reply.vectors.items())[:-1]))]


def _extra(reply: Reply, _: Reply | None) -> list[Reply | Failure]:
    return [replace(reply, vectors=Vectors(reply.vectors | {"extra": reply.vectors.delta}))]


def _stale(reply: Reply, earlier: Reply | None) -> list[Reply | Failure]:
    return [earlier if earlier is not None else replace(reply, nonce="of another round")]


REJECTED: dict[str, Fault] = {
    "nan": _changed(_one_element(math.nan)),
    "infinite": _changed(_one_element(math.inf)),
    "minus infinite": _changed(_one_element(-math.inf)),
    "scalar": _changed(_first_tensor(lambda t: t.sum())),
    "broadcasts": _changed(_first_tensor(lambda t: t[:1] if len(t) > 1 else t[None])),
    "flat": _changed(_first_tensor(lambda t: t.reshape(1, -1))),
    "tensor missing": _changed(lambda vector: Vector(vector.tensors[:-1])),
    "tensor too many": _changed(lambda vector: Vector([*vector, vector.tensors[0]])),
    "vector missing": _missing,
    "vector too many": _extra,
    "float16": _changed(_all_tensors(lambda t: t.to(torch.float16))),
    "other float": _changed(
        _all_tensors(lambda t: t.float() if t.dtype == torch.float64 else t.double())
    ),
    "complex": _changed(_all_tensors(lambda t: t.to(torch.complex64))),
    "integer": _changed(_all_tensors(lambda t: t.to(torch.int64))),
    "sparse": _changed(_first_tensor(lambda t: t.to_sparse())),
    "negative examples": _said(examples=-1),
    "no examples": _said(examples=0),
    "nan examples": _said(examples=math.nan),
    "1e18 examples": _said(examples=10**18),
    "infinite examples": _said(examples=math.inf),
    "text for examples": _said(examples="many"),
    "no steps": _said(steps=0),
    "nan lr_sum": _said(lr_sum=math.nan),
    "negative lr_sum": _said(lr_sum=-1.0),
    "1e300 lr_sum": _said(lr_sum=1e300),
    "text for a metric": _said(metrics={"loss": "low"}),
    "stale": _stale,
    "other round": lambda reply, _: [replace(reply, round=reply.round + 1)],
    "guessed nonce": _said(nonce="0123456789abcdef"),
    "not asked": lambda reply, _: [replace(reply, client=reply.client + 1_000_000)],
}
"""Replies that are rejected."""

BEYOND: dict[str, Fault] = {
    "huge v": _changed(lambda v: v.full_like(1e4), only="v"),
    "delta x 1000": _changed(lambda delta: delta * 1000, only="delta"),
    "delta x -1000": _changed(lambda delta: delta * -1000, only="delta"),
    "extreme numbers": _changed(_extreme),
    "1e15 examples": _said(examples=10**15),
    "1e9 steps": _said(steps=10**9, lr_sum=1e9),
    "next to no lr_sum": _said(steps=1, lr_sum=1e-12),
}
"""Replies that are rejected once the sizes of other replies are known."""

EXAGGERATED: dict[str, Fault] = {
    "zero v": _changed(lambda v: v.zeros_like(), only="v"),
    "negative v": _changed(lambda v: v.full_like(-1.0), only="v"),
    "delta x 10": _changed(lambda delta: delta * 10, only="delta"),
    "delta x -10": _changed(lambda delta: delta * -10, only="delta"),
    "steps x 10": lambda r, _: [replace(r, steps=r.steps * 10, lr_sum=r.lr_sum * 10)],
    "lr_sum / 10": lambda r, _: [replace(r, lr_sum=r.lr_sum / 10)],
}
"""Replies that are admitted after being limited."""

REPEATED: dict[str, Fault] = {
    "twice": lambda reply, _: [reply, reply],
    "two unlike": lambda reply, _: [reply, *FAULTS["delta x -10"](reply, None)],
}
"""Several replies of one client, of which only the first counts."""

FAULTS: dict[str, Fault] = {
    "drop out": lambda reply, _: [Failure(client=reply.client, reason="dropped out")],
    **REJECTED,
    **BEYOND,
    **EXAGGERATED,
    **REPEATED,
}
"""All faults by name."""
