"""The server loop, written once against the engine seam: a generator of round records."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

from .aggregation import Mean
from .algorithms import Algorithm, Round, Vector, Vectors, require
from .protocol import Engine, Failure, Reply, Task
from .sampling import Sampler

__all__ = ["RoundRecord", "ServerState", "Weighting", "federate"]

Weighting = Literal["uniform", "examples"]


@dataclass
class ServerState:
    """All that the server carries from round to round."""

    vectors: Vectors
    round: int = 0
    """Rounds done."""
    updates: int = 0
    """Rounds that changed the model."""

    @classmethod
    def new(cls, algorithm: Algorithm, x: Vector, buffers: Vector | None = None) -> ServerState:
        """The state before the first round."""
        state = cls(algorithm.start(x))
        if buffers is not None:
            state.vectors.buffers = buffers
        return state


@dataclass(frozen=True, kw_only=True)
class RoundRecord:
    """What happened in one round."""

    round: int
    """Counted from 1: after this record so many rounds are done."""
    lr: float
    cohort: tuple[int, ...]
    accepted: int
    applied: bool
    """Whether the model changed: enough replies were accepted."""
    steps: float
    """Mean number of local steps."""
    bytes_down: int
    bytes_up: int
    seconds: float
    """What the round took, evaluation not included."""
    failures: Mapping[str, int] = field(default_factory=dict)
    """Clients without a usable reply, counted by reason."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Means of what the clients reported, and what ``evaluate`` found."""


def federate(
    algorithm: Algorithm,
    engine: Engine,
    state: ServerState,
    *,
    rounds: int,
    sampling: Sampler,
    seed: int = 0,
    lr_decay: float = 1.0,
    weighting: Weighting = "uniform",
    target: int | None = None,
    minimum: int = 1,
    evaluate: Callable[[Vectors, int], Mapping[str, float]] | None = None,
) -> Iterator[RoundRecord]:
    """Run rounds until ``state.round`` is ``rounds``, yielding a record after each.

    A round closes as soon as ``target`` replies are accepted (sample more clients than that to
    be independent of the slowest) and is abandoned, with the vectors unchanged, if it ends with
    fewer than ``minimum``.

    ``state`` is renewed in place before its record is yielded, so it can be saved between two
    records and the run continued from it.
    """
    require(
        weighting in get_args(Weighting),
        f"weighting is {weighting!r}; it must be one of {', '.join(get_args(Weighting))}",
    )
    require(minimum >= 1, f"minimum is {minimum}; a round needs at least one reply")
    require(
        target is None or target >= minimum,
        f"target is {target} and minimum is {minimum}; a round cannot close below its minimum",
    )
    require(0 < lr_decay <= 1, f"lr_decay is {lr_decay}; it must be above 0 and at most 1")
    while state.round < rounds:
        began = time.perf_counter()
        s = state.vectors
        task = Task(
            round=state.round,
            seed=seed,
            lr=algorithm.lr(state.round, decay=lr_decay),
            vectors=s.only((*algorithm.down, *(name for name in ("buffers",) if name in s))),
        )
        cohort = sampling.cohort(seed, state.round, engine.clients)
        mean, accepted, failures, bytes_up = Mean(), list[int](), Counter[str](), 0
        for reply in engine.exchange(task, cohort):
            if isinstance(reply, Failure):
                failures[reply.reason] += 1
                continue
            mean.fold(
                reply.vectors,
                weight=1 if weighting == "uniform" else reply.examples,
                scalars=_scalars(reply),
            )
            bytes_up += reply.vectors.nbytes()
            accepted.append(reply.client)
            if len(accepted) == target:
                break
        applied = len(accepted) >= minimum
        scalars = mean.scalars() if accepted else {"steps": 0.0, "lr_steps": 0.0}
        steps, lr_steps = scalars.pop("steps"), scalars.pop("lr_steps")
        if applied:
            r = Round(
                steps=steps,
                lr_steps=lr_steps,
                accepted=len(accepted),
                clients=engine.clients,
                updates=state.updates,
            )
            _serve(algorithm, s, mean.vectors(), r)
        engine.commit(state.round, accepted if applied else [])
        state.round += 1
        state.updates += applied
        seconds = time.perf_counter() - began
        metrics = {name.removeprefix("metric:"): value for name, value in scalars.items()}
        if evaluate is not None:
            metrics |= evaluate(s, state.round)
        yield RoundRecord(
            round=state.round,
            lr=task.lr,
            cohort=tuple(cohort),
            accepted=len(accepted),
            applied=applied,
            steps=steps,
            bytes_down=task.vectors.nbytes() * len(cohort),
            bytes_up=bytes_up,
            seconds=seconds,
            failures=dict(failures),
            metrics=metrics,
        )


def _scalars(reply: Reply) -> dict[str, float]:
    metrics = {f"metric:{name}": value for name, value in reply.metrics.items()}
    return {"steps": reply.steps, "lr_steps": reply.lr_steps} | metrics


def _serve(algorithm: Algorithm, s: Vectors, mean: Vectors, r: Round) -> None:
    if "buffers" in mean:
        s.buffers = mean.pop("buffers")
    algorithm.serve(s, mean, r)
