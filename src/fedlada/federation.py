"""The server loop, written once against the engine seam: a generator of round records."""

from __future__ import annotations

import secrets
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import get_args

from .admission import Admission, Admitted, Weighting
from .aggregation import Mean
from .algorithms import Algorithm, Round, Vector, Vectors, require
from .guard import Guard, History
from .protocol import Engine, Failure, Reply, Task
from .rounds import Aggregator, Clock, RoundRecord, Tally
from .sampling import Sampler

__all__ = ["ServerState", "federate"]


@dataclass
class ServerState:
    """All that the server carries from round to round."""

    vectors: Vectors
    round: int = 0
    """Rounds done."""
    updates: int = 0
    """Rounds that changed the model."""
    run: str = field(default_factory=lambda: secrets.token_hex(8))
    """The run's name, the same before and after it is resumed."""
    last: dict[int, int] = field(default_factory=dict)
    """The round of the last accepted reply of each client, if clients keep vectors."""
    history: History = field(default_factory=dict)
    """What the guard has seen of late."""
    epoch: int | None = None
    """The earliest round the run can be resumed from; None if it cannot."""

    @classmethod
    def new(cls, algorithm: Algorithm, x: Vector, buffers: Vector | None = None) -> ServerState:
        """The state before the first round."""
        state = cls(algorithm.start(x))
        if buffers is not None:
            state.vectors.buffers = buffers
        return state


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
    guard: Guard | None = Guard(),  # noqa: B008
    aggregator: Callable[[], Aggregator] = Mean,
    evaluate: Callable[[Vectors, int], Mapping[str, float]] | None = None,
    save: Callable[[ServerState, RoundRecord], None] | None = None,
) -> Iterator[RoundRecord]:
    """Run rounds until ``state.round`` is ``rounds``, yielding a record after each.

    A round closes as soon as ``target`` replies are accepted (sample more clients than that to
    be independent of the slowest) and is abandoned, with the vectors unchanged, if it ends with
    fewer than ``minimum``.  Every reply passes the ``guard``; None lets in whatever comes.

    ``state`` is renewed in place; ``save(state, record)`` is called once it is, before any client
    is told that its reply was accepted, so a run continued from what was saved is the same run.
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
    trouble = Counter[str]()
    while state.round < rounds:
        clock = Clock()
        s = state.vectors
        cohort = sampling.cohort(seed, state.round, engine.clients)
        task = Task(
            round=state.round,
            seed=seed,
            lr=algorithm.lr(state.round, decay=lr_decay),
            vectors=s.only((*algorithm.down, *(name for name in ("buffers",) if name in s))),
            nonce=secrets.token_hex(8),
            run=state.run,
            last={client: state.last[client] for client in cohort if client in state.last},
            epoch=state.round if state.epoch is None else state.epoch,
        )
        tally, replies = Tally(aggregator()), clock.waiting(engine.exchange(task, cohort))
        admission = guard and Admission(
            guard,
            algorithm,
            task,
            cohort,
            history=state.history,
            weighting=weighting,
            hold=target,
        )
        for reply in admission.of(replies) if admission else _unguarded(replies, weighting):
            tally.add(reply)
            if len(tally.accepted) == target:
                break
        applied = len(tally.accepted) >= minimum
        scalars = tally.total.scalars() if tally.accepted else {"steps": 0.0, "lr_steps": 0.0}
        distances: tuple[float, float] | tuple[None, None] = None, None
        if applied:
            r = Round(
                steps=scalars["steps"],
                lr_steps=scalars["lr_steps"],
                accepted=len(tally.accepted),
                clients=engine.clients,
                updates=state.updates,
            )
            x, mean = s.x, tally.total.vectors()
            _serve(algorithm, s, mean, r)
            if isinstance(tally.total, Mean):
                distances = tally.distances(x - s.x, mean.delta)
            if admission:
                state.history = admission.remembered()
            if engine.keeps:
                state.last |= dict.fromkeys(tally.accepted, state.round)
        state.round += 1
        state.updates += applied
        trouble.update(
            tally.rejected + Counter({f"limited {n}": c for n, c in tally.limited.items()})
        )
        seconds, own = clock.read()
        metrics, spread = tally.metrics()
        if evaluate is not None:
            metrics |= {n: float(value) for n, value in evaluate(s, state.round).items()}
        record = RoundRecord(
            round=state.round,
            lr=task.lr,
            cohort=tuple(cohort),
            accepted=len(tally.accepted),
            applied=applied,
            steps=scalars["steps"],
            bytes_down=task.vectors.nbytes() * len(cohort),
            bytes_up=tally.bytes_up,
            seconds=seconds,
            local_seconds=tally.local_seconds,
            server_seconds=own,
            drift=distances[0],
            consistency=distances[1],
            failures=dict(tally.failures),
            rejected=dict(tally.rejected),
            limited=dict(tally.limited),
            metrics=metrics,
            spread=spread,
        )
        if save is not None:
            save(state, record)
        engine.commit(task, tally.accepted if applied else [])
        yield record
    if trouble:
        warnings.warn(
            f"the guard stepped in, over {rounds} rounds: "
            + ", ".join(f"{reason} {count}x" for reason, count in trouble.most_common()),
            stacklevel=2,
        )


def _unguarded(
    replies: Iterable[Reply | Failure], weighting: Weighting
) -> Iterator[Admitted | Failure]:
    for reply in replies:
        if isinstance(reply, Failure):
            yield reply
        else:
            yield Admitted(reply=reply, weight=1 if weighting == "uniform" else reply.examples)


def _serve(algorithm: Algorithm, s: Vectors, mean: Vectors, r: Round) -> None:
    if "buffers" in mean:
        s.buffers = mean.pop("buffers")
    algorithm.serve(s, mean, r)
