"""The server loop, written once for every engine: a generator of round records."""

from __future__ import annotations

import random
import secrets
import statistics
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import cast

from ..algorithms import Round, Vectors
from ..errors import FedladaError, require
from ..privacy import Privacy
from ..protocol.engine import Engine
from ..protocol.federated import BUFFERS
from ..protocol.messages import Clips, Task
from ..protocol.residual import base
from ..protocol.seeds import seed_of
from ..protocol.wire import send
from .collect.collect import Collector, Here
from .collect.masked import Masked
from .collect.tally import NORM, Tally
from .guard import CENTRE
from .plan import Plan
from .private.release import allowed, published, release, released_at_all
from .record import MOST_CLIENTS, Clock, RoundRecord, names_on_record
from .sampling import Bernoulli
from .state import ServerState

__all__ = [
    "NothingApplied",
    "advance",
    "check_applied",
    "federate",
    "next_cohort",
    "next_task",
    "report",
]

UNLIKE_STEPS = "; to simulate honest clients that take unlike numbers of steps, give guard='off'"
"""What a run says at its end if the guard has limited a number of steps."""
MOST_NAMED = 5
"""Largest number of clients that a warning names."""

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
    collector: Collector | None = None,
) -> Iterator[RoundRecord]:
    """Run rounds until ``state.round`` is ``plan.rounds`` and yield a record after each.

    ``state`` is updated in place.  ``survey(state, record)`` may then ask clients to evaluate the
    model, and returns the record with the results.  ``save(state, record)`` is called before any
    client learns that its reply was accepted, so a run resumed from the saved state is the same
    run.  It returns the earliest round to resume from.  A ``collector`` may share the cohort
    among processes.  Raises :class:`NothingApplied` at the end of a run without any update.
    """
    trouble = _Trouble(plan)
    name: Callable[[int], str] = getattr(engine, "name", str)
    if plan.masks is not None:
        require(
            collector is None,
            "there are masks, and several processes or leaves share the cohort, each of which"
            " would see a part of the sum: leave workers out, and make each node one client",
        )
        collector = Masked(plan, engine)
    collector = collector or Here(plan, engine)
    if plan.staleness:
        _check_late(plan, collector)
    state.forget(plan.staleness)
    while state.round < plan.rounds and allowed(plan, state, engine.clients):
        clock = Clock()
        task, cohort = next_task(plan, state, engine.clients)
        tally = collector.collect(task, cohort, state, clock)
        applied, distances = advance(plan, state, tally, engine)
        whole = report(state, task, tally, applied, distances, clock, evaluate, name=name)
        record = published(plan, state, task, whole)
        if survey is not None:
            record = survey(state, record)
        if save is not None:
            state.resumable_from = save(state, record)
        for version, clients in _by_task(task, tally).items():
            engine.commit(replace(task, round=version), clients if applied else [])
        del tally  # otherwise its sums would stay in memory while the next round makes its own
        trouble.note(whole)
        yield record
    trouble.warn()
    check_applied(plan, state, trouble.missing + trouble.guarded, trouble.judged + trouble.failed)


class _Trouble:
    """What a run's records say of replies that failed, were rejected or were limited."""

    def __init__(self, plan: Plan) -> None:
        self._rounds = plan.rounds
        # Where honest clients differ, some momenta are shortened, which costs them nothing.
        self._expected = {f"limited {name}" for name in plan.algorithm.directions}
        self.missing, self.guarded = Counter[str](), Counter[str]()
        """How often each reason occurred: for a reply that never came, and of the guard."""
        self.failed, self.judged = Counter[str](), Counter[str]()
        """The clients to whom that happened."""

    def note(self, record: RoundRecord) -> None:
        """Count what happened in a round."""
        self.missing.update(record.failures)
        limited = {f"limited {what}": count for what, count in record.limited.items()}
        reasons = {**record.rejected, **limited}
        self.guarded.update({why: n for why, n in reasons.items() if why not in self._expected})
        for client, why in record.incidents.items():
            if not self._expected.issuperset(why.split(", ")):
                (self.failed if why in record.failures else self.judged)[client] += 1

    def warn(self) -> None:
        """Say at the end of a run what the guard did."""
        if self.guarded:
            counts = _counts(self.guarded) + _of_clients(self.judged)
            unlike = UNLIKE_STEPS if "limited steps" in self.guarded else ""
            warnings.warn(
                f"the guard stepped in, over {self._rounds} rounds: {counts}{unlike}", stacklevel=3
            )


def _check_late(plan: Plan, collector: Collector) -> None:
    """Check that late replies will come, and warn of an algorithm to which they may do harm."""
    require(
        getattr(collector, "waits", False),
        f"staleness is {plan.staleness}, and this engine yields no late replies: simulate the"
        " run with devices, run it on Flower with one client per node, or leave staleness out",
    )
    server = plan.algorithm.server
    reasons = {type(part).__name__: part.late for part in plan.algorithm.part.chain()}
    for name, reason in {**reasons, type(server).__name__: server.late}.items():
        if reason:
            warnings.warn(f"{name} with staleness: {reason}", stacklevel=3)


def _by_task(task: Task, tally: Tally) -> dict[int, list[int]]:
    """Return the accepted clients in order, by the round of the task that they answered."""
    clients, late = defaultdict[int, list[int]](list, {task.round: []}), tally.late
    for client in sorted(tally.accepted):
        clients[task.round if late is None else late.flights[client]].append(client)
    return clients


def check_applied(
    plan: Plan,
    state: ServerState,
    reasons: Mapping[str, int],
    clients: Mapping[str, int] = MappingProxyType({}),
) -> None:
    """Raise an error if a run ends with the model that it began with."""
    if state.updates or not plan.rounds:
        return
    counts = _counts(reasons, 3) + _of_clients(clients)
    raise NothingApplied(
        f"none of {state.round} rounds changed the model: each had fewer accepted replies than it"
        f" needs (minimum is {plan.minimum}; failed replies: {counts or 'none since the start'})."
        " Fix the cause or sample more clients per round. Then start a new run, or resume with a"
        " larger rounds: saved rounds count as done"
    )


def _counts(reasons: Mapping[str, int], most: int | None = None) -> str:
    """Return the most common reasons with their counts: ``deadline 3x, wrong records 1x``."""
    return ", ".join(f"{reason} {n}x" for reason, n in Counter(reasons).most_common(most))


def _of_clients(clients: Mapping[str, int]) -> str:
    """Return whose replies were most often not used as they came, by name: ``, of Graz 3x``."""
    return f", of {_counts(clients, MOST_NAMED)}" if clients else ""


def next_cohort(plan: Plan, state: ServerState, clients: int) -> Sequence[int]:
    """Return the cohort of the next round.

    If a round closes early, the cohort is in a random order: in process that is the order in which
    replies arrive, and no client may be first because its number is low.
    """
    if state.account is not None and plan.privacy is not None:
        return state.account.cohort(state.round, clients, cast(Bernoulli, plan.cohort).rate)
    busy = {"busy": state.flights.keys()} if plan.staleness else {}
    cohort = plan.cohort.cohort(plan.seed, state.round, clients, **busy)
    if plan.close_after is not None:
        cohort = random.Random(seed_of(plan.seed, "arrival", state.round)).sample(
            cohort, len(cohort)
        )
    return cohort


def next_task(plan: Plan, state: ServerState, clients: int) -> tuple[Task, Sequence[int]]:
    """Return the task of the next round, with encoded vectors, and its cohort."""
    cohort = next_cohort(plan, state, clients)
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
        clips=None if plan.privacy is None else _clips(plan.privacy, state),
    )
    if plan.staleness:
        state.depart(task, cohort, base=base(plan.algorithm, plan.codec, state.vectors))
    return task, cohort


def _clips(privacy: Privacy, state: ServerState) -> Clips:
    return Clips(steps=privacy.steps, lengths=dict(state.clips))


def advance(plan: Plan, state: ServerState, tally: Tally, engine: Engine) -> tuple[bool, Distances]:
    """Update the state from a complete tally, or leave the vectors unchanged if it is too small.

    Returns whether the model changed, and drift and consistency if they are known.
    """
    tally.close()
    private = plan.privacy is not None
    applied = released_at_all(tally) if private else plan.enough(len(tally.accepted))
    distances: Distances = None, None
    if applied:
        s, x, algorithm = state.vectors, state.vectors.x, plan.algorithm
        mean, r = (release if private else _combined)(plan, state, tally, engine.clients)
        if BUFFERS in mean:
            s.buffers = mean.pop(BUFFERS)
        algorithm.serve(s, mean, r)
        if tally.total.is_mean and not (algorithm.unit_delta or plan.staleness or private):
            distances = tally.distances(x - s.x, mean.delta)
        moments = {moment.of for moment in algorithm.moments}
        for name in set(algorithm.down) - moments:
            s[name].drop_dust_()
        if plan.guard is not None:
            state.history = plan.guard.remember(state.history, tally.seen)
            state.contributed |= tally.contributed
            centre = tally.admission.centre(mean.delta, r.lr_sum)
            if centre is not None:
                s[CENTRE] = centre
        if engine.keeps:
            late = tally.late  # a client keeps its vectors under the round of its task
            versions = {} if late is None else late.flights
            accepted = sorted(tally.accepted)
            state.last_accepted |= {c: versions.get(c, state.round) for c in accepted}
            state.changed.update(tally.accepted)
    state.round += 1
    state.updates += applied
    too_late = state.forget(plan.staleness)
    tally.failures.update({"too late": too_late} if too_late else {})
    return applied, distances


def _combined(plan: Plan, state: ServerState, tally: Tally, clients: int) -> tuple[Vectors, Round]:
    """Return the combined vectors and scalars of the accepted replies."""
    scalars, mean = tally.total.scalars(), tally.mean()
    scale = scalars["lr_sum"] if plan.algorithm.unit_delta else 1.0
    r = Round(
        steps=scalars["steps"],
        lr_sum=scalars["lr_sum"],
        accepted=len(tally.accepted),
        clients=clients,
        updates=state.updates,
        delta_square=scalars[NORM] * scale * scale,
    )
    return mean, tally.admission.bounded(r, mean)


def report(
    state: ServerState,
    task: Task,
    tally: Tally,
    applied: bool,
    distances: Distances,
    clock: Clock,
    evaluate: Callable[[int], Mapping[str, float]] | None,
    *,
    name: Callable[[int], str] = str,
) -> RoundRecord:
    """Return the record of the round; the clock stops before the evaluation."""
    seconds, server_seconds = clock.read()
    means, spread = tally.metrics()
    names = names_on_record(state.metric_names, tally.reported)
    left_out = len(tally.reported) - len(names)
    limited = tally.limited + Counter({"number of metrics": left_out} if left_out else {})
    metrics = {} if evaluate is None else evaluate(state.round)
    late = tally.late
    ages = [] if late is None else late.ages
    return RoundRecord(
        round=state.round,
        lr=task.lr,
        cohort=tuple(sorted(tally.cohort)),
        accepted=len(tally.accepted),
        applied=applied,
        steps=tally.total.scalars().get("steps", 0.0) if tally.accepted else 0.0,
        bytes_down=task.nbytes * (len(tally.cohort) - tally.unreached),
        bytes_up=tally.bytes_up,
        time=state.time,
        seconds=seconds,
        local_seconds=tally.local_seconds,
        server_seconds=server_seconds,
        members=() if late is None else tuple(sorted(late.members)),
        age=statistics.fmean(ages) if ages else None,
        oldest=max(ages, default=None),
        drift=distances[0],
        consistency=distances[1],
        failures=dict(sorted(tally.failures.items())),
        rejected=dict(sorted(tally.rejected.items())),
        limited=dict(sorted(limited.items())),
        incidents={
            name(client): ", ".join(sorted(tally.incidents[client]))
            for client in sorted(tally.incidents)[:MOST_CLIENTS]
        },
        metrics={name: float(value) for name, value in metrics.items()},
        client_metrics={name: means[name] for name in names},
        spread={name: spread[name] for name in names},
    )
