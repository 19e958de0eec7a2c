"""The server loop, written once for every engine: a generator of round records."""

from __future__ import annotations

import secrets
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

from ..algorithms import Round
from ..errors import FedladaError
from ..protocol.engine import Engine
from ..protocol.federated import BUFFERS
from ..protocol.messages import Task
from ..protocol.seeds import seed_of
from ..protocol.wire import send
from .collect import Collector, collect
from .plan import Plan
from .record import Clock, RoundRecord, names_on_record
from .state import ServerState
from .tally import NORM, Tally

__all__ = ["NothingApplied", "advance", "check_applied", "federate", "next_task", "report"]

Distances = tuple[float, float] | tuple[None, None]


class NothingApplied(FedladaError):
    """A run ended in which no round changed the model."""


def federate(
    plan: Plan,
    engine: Engine,
    state: ServerState,
    *,
    evaluate: Callable[[int], Mapping[str, float]] | None = None,
    survey: Callable[[ServerState, RoundRecord], RoundRecord] | None = None,
    save: Callable[[ServerState, RoundRecord], int | None] | None = None,
    collector: Collector = collect,
) -> Iterator[RoundRecord]:
    """Run rounds until ``state.round`` is ``plan.rounds`` and yield a record after each.

    ``state`` is updated in place.  ``survey(state, record)`` may then ask clients to evaluate the
    model, and returns the record with what they say.  ``save(state, record)`` is called after the
    update and before any client is told that its reply was accepted, so a run continued from the
    saved state is the same run.  It returns the earliest round from which the run can be resumed.
    Another ``collector`` than :func:`collect` may share the cohort among several processes.  A run
    in which no round changed the model ends with :class:`NothingApplied`.
    """
    trouble, missing = Counter[str](), Counter[str]()
    while state.round < plan.rounds:
        clock = Clock()
        task, cohort = next_task(plan, state, engine.clients)
        tally = collector(plan, engine, task, cohort, state, clock=clock)
        applied, distances = advance(plan, state, tally, engine)
        record = report(state, task, tally, applied, distances, clock, evaluate)
        if survey is not None:
            record = survey(state, record)
        if save is not None:
            state.resumable_from = save(state, record)
        engine.commit(task, sorted(tally.accepted) if applied else [])
        missing.update(record.failures)
        trouble.update(record.rejected)
        trouble.update({f"limited {what}": count for what, count in record.limited.items()})
        yield record
    if trouble:
        told = _told(trouble)
        warnings.warn(f"the guard stepped in, over {plan.rounds} rounds: {told}", stacklevel=2)
    check_applied(plan, state, missing + trouble)


def check_applied(plan: Plan, state: ServerState, reasons: Mapping[str, int]) -> None:
    """Raise an error if a run ends with the model that it began with."""
    if state.updates or not plan.rounds:
        return
    told = _told(reasons, 3)
    raise NothingApplied(
        f"none of {state.round} rounds changed the model: each had fewer accepted replies than it"
        f" needs (minimum is {plan.minimum}; failed replies: {told or 'none since the start'})."
        " Mend that, or ask more clients per round; then start anew, or go on with more rounds:"
        " those that are saved count as done"
    )


def _told(reasons: Mapping[str, int], most: int | None = None) -> str:
    """Return the most common reasons as words: ``deadline 3x, wrong records 1x``."""
    return ", ".join(f"{reason} {n}x" for reason, n in Counter(reasons).most_common(most))


def next_task(plan: Plan, state: ServerState, clients: int) -> tuple[Task, Sequence[int]]:
    """Return the task of the next round, with encoded vectors, and its cohort."""
    cohort = plan.sampling.cohort(plan.seed, state.round, clients)
    names = (*plan.algorithm.down, *(name for name in (BUFFERS,) if name in state.vectors))
    seed = seed_of(plan.seed, "down", state.round)
    parcel = send(state.vectors.only(names), plan.codec, "down", seed=seed)
    task = Task(
        round=state.round,
        seed=plan.seed,
        lr=plan.algorithm.lr(state.round, decay=plan.lr_decay),
        vectors=parcel.vectors,
        parcel=parcel,
        codecs=plan.codec,
        nonce=secrets.token_hex(8),
        run=state.run,
        last_accepted={c: state.last_accepted[c] for c in cohort if c in state.last_accepted},
        resumable_from=state.round if state.resumable_from is None else state.resumable_from,
    )
    return task, cohort


def advance(plan: Plan, state: ServerState, tally: Tally, engine: Engine) -> tuple[bool, Distances]:
    """Update the state from a complete tally, or leave the vectors unchanged if it is too small.

    Returns whether the model changed, and drift and consistency if they are known.
    """
    tally.close()
    applied = plan.enough(len(tally.accepted))
    distances: Distances = None, None
    if applied:
        s, scalars, mean = state.vectors, tally.total.scalars(), tally.total.vectors()
        x, algorithm = s.x, plan.algorithm
        scale = scalars["lr_sum"] if algorithm.unit_delta else 1.0
        if BUFFERS in mean:
            s.buffers = mean.pop(BUFFERS)
        r = Round(
            steps=scalars["steps"],
            lr_sum=scalars["lr_sum"],
            accepted=len(tally.accepted),
            clients=engine.clients,
            updates=state.updates,
            delta_square=scalars[NORM] * scale * scale,
        )
        algorithm.serve(s, mean, r)
        if tally.total.is_mean and not algorithm.unit_delta:
            distances = tally.distances(x - s.x, mean.delta)
        moments = {moment.of for moment in algorithm.moments}
        for name in set(algorithm.down) - moments:
            s[name].drop_dust_()
        if plan.guard is not None:
            state.history = plan.guard.remember(state.history, tally.seen)
            state.contributed |= tally.contributed
        if engine.keeps:
            state.last_accepted |= dict.fromkeys(sorted(tally.accepted), state.round)
            state.changed.update(tally.accepted)
    state.round += 1
    state.updates += applied
    return applied, distances


def report(
    state: ServerState,
    task: Task,
    tally: Tally,
    applied: bool,
    distances: Distances,
    clock: Clock,
    evaluate: Callable[[int], Mapping[str, float]] | None,
) -> RoundRecord:
    """Return the record of the round; the clock stops before the evaluation."""
    seconds, own = clock.read()
    means, spread = tally.metrics()
    names = names_on_record(state.metric_names, tally.reported)
    left_out = len(tally.reported) - len(names)
    limited = tally.limited + Counter({"number of metrics": left_out} if left_out else {})
    metrics = {} if evaluate is None else evaluate(state.round)
    return RoundRecord(
        round=state.round,
        lr=task.lr,
        cohort=tuple(tally.cohort),
        accepted=len(tally.accepted),
        applied=applied,
        steps=tally.total.scalars()["steps"] if tally.accepted else 0.0,
        bytes_down=task.nbytes * (len(tally.cohort) - tally.unreached),
        bytes_up=tally.bytes_up,
        seconds=seconds,
        local_seconds=tally.local_seconds,
        server_seconds=own,
        drift=distances[0],
        consistency=distances[1],
        failures=dict(sorted(tally.failures.items())),
        rejected=dict(sorted(tally.rejected.items())),
        limited=dict(sorted(limited.items())),
        metrics={name: float(value) for name, value in metrics.items()},
        client_metrics={name: means[name] for name in names},
        spread={name: spread[name] for name in names},
    )
