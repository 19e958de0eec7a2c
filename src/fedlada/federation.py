"""The server loop, written once against the engine seam: a generator of round records."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

from .aggregation import Mean
from .algorithms import Algorithm, Round, Vector, Vectors, require
from .protocol import Engine, Reply, Task
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
    steps: float
    """Mean number of local steps."""
    bytes_down: int
    bytes_up: int
    seconds: float
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
    evaluate: Callable[[Vectors, int], Mapping[str, float]] | None = None,
) -> Iterator[RoundRecord]:
    """Run rounds until ``state.round`` is ``rounds``, yielding a record after each.

    ``state`` is renewed in place before its record is yielded, so it can be saved between two
    records and the run continued from it.
    """
    require(
        weighting in get_args(Weighting),
        f"weighting is {weighting!r}; it must be one of {', '.join(get_args(Weighting))}",
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
        mean, accepted, bytes_up = Mean(), [], 0
        for reply in engine.exchange(task, cohort):
            mean.fold(
                reply.vectors,
                weight=1 if weighting == "uniform" else reply.examples,
                scalars=_scalars(reply),
            )
            bytes_up += reply.vectors.nbytes()
            accepted.append(reply.client)
        scalars = mean.scalars()
        steps, lr_steps = scalars.pop("steps"), scalars.pop("lr_steps")
        _serve(
            algorithm,
            s,
            mean.vectors(),
            Round(
                steps=steps,
                lr_steps=lr_steps,
                accepted=len(accepted),
                clients=engine.clients,
                updates=state.updates,
            ),
        )
        engine.commit(state.round, accepted)
        state.round += 1
        state.updates += 1
        metrics = {name.removeprefix("metric:"): value for name, value in scalars.items()}
        if evaluate is not None:
            metrics |= evaluate(s, state.round)
        yield RoundRecord(
            round=state.round,
            lr=task.lr,
            cohort=tuple(cohort),
            accepted=len(accepted),
            steps=steps,
            bytes_down=task.vectors.nbytes() * len(cohort),
            bytes_up=bytes_up,
            seconds=time.perf_counter() - began,
            metrics=metrics,
        )


def _scalars(reply: Reply) -> dict[str, float]:
    metrics = {f"metric:{name}": value for name, value in reply.metrics.items()}
    return {"steps": reply.steps, "lr_steps": reply.lr_steps} | metrics


def _serve(algorithm: Algorithm, s: Vectors, mean: Vectors, r: Round) -> None:
    if "buffers" in mean:
        s.buffers = mean.pop("buffers")
    algorithm.serve(s, mean, r)
