"""Evaluation by the clients: each evaluates the server's model on its own data and sends metrics.

These metrics never change the model, and no client has to answer: failures are counted.  The server
combines the answers as follows.

- A mean is weighted by the number of examples that a client claims.  The guard limits these weights
  as it does in training, by the counts of this evaluation.  Without a guard, or with only a few
  clients, one client can have most of the weight and report any finite number.
- The median over the clients counts each client once, so fewer than half of them cannot move it
  beyond the values of the others.
- The mean of the worst tenth says how the model serves those that it serves worst.  A single liar
  can move it, so nothing is decided by it.
- A metric is recorded only if more than half of the clients report it, so a minority cannot add
  names.
"""

from __future__ import annotations

import math
import secrets
import statistics
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

from ..algorithms import Vectors
from ..errors import require
from ..protocol.federated import BUFFERS
from ..protocol.messages import Assessment, Failure, Task, well_named
from ..protocol.seeds import seed_of
from ..protocol.wire import send
from .aggregate.mean import Mean
from .guard.contract import counted, measured
from .guard.limits import Guard
from .plan import Plan
from .record import MOST_CLIENTS, RoundRecord
from .sampling import Sampler
from .state import ServerState

__all__ = ["Combined", "Evaluator", "Survey", "combine"]

LOWER = {"bits", "entropy", "error", "loss", "mae", "mse", "perplexity", "rmse"}
"""Words in the names of metrics of which a lower value is better."""


class Evaluator(Protocol):
    """An engine whose clients can evaluate the model."""

    @property
    def clients(self) -> int:
        """Number of registered clients."""
        ...

    def evaluate(self, task: Task, cohort: Sequence[int]) -> Iterator[Assessment | Failure]:
        """Send the model to the cohort and yield each client's assessment, in any order."""
        ...


@dataclass(frozen=True)
class Survey:
    """Asks a sample of the clients to evaluate the model whenever the plan evaluates."""

    plan: Plan
    engine: Evaluator
    evaluators: Sampler
    lower: Collection[str] = ()
    """The metrics of which a lower value is better, if their names do not say it."""
    name: Callable[[int], str] = str
    """Returns what a client is called in the record."""

    def __post_init__(self) -> None:
        require(
            self.plan.privacy is None,
            "clients are to evaluate the model and there is privacy: their metrics have no noise."
            " Evaluate on the server, with public examples",
        )

    def __call__(self, state: ServerState, record: RoundRecord) -> RoundRecord:
        """Return the record with the clients' evaluation, if one is due."""
        if not self.plan.evaluates(state.round):
            return record
        seed = seed_of(self.plan.seed, "evaluation")
        cohort = self.evaluators.cohort(seed, record.round, self.engine.clients)
        task = self._task(state, cohort)
        accepted, failures, reached = list[Assessment](), Counter[str](), len(cohort)
        for answer in self.engine.evaluate(task, cohort):
            breach = answer.reason if isinstance(answer, Failure) else _breach(answer, task)
            if breach is not None:
                failures[breach] += 1
            elif isinstance(answer, Assessment):
                accepted.append(answer)
            reached -= isinstance(answer, Failure) and not answer.reached
        combined = combine(accepted, self.plan.guard, lower=self.lower)
        failures += combined.left_out
        return replace(
            record,
            evaluation=combined.means,
            evaluation_median=combined.medians,
            evaluation_worst=combined.worst,
            evaluation_clients={
                self.name(client): metrics for client, metrics in combined.each.items()
            },
            evaluated_by=combined.clients,
            evaluation_failures=dict(sorted(failures.items())),
            evaluation_bytes=task.nbytes * reached,
        )

    def _task(self, state: ServerState, cohort: Sequence[int]) -> Task:
        """Return a task that has only the vectors of the model."""
        names = ("x", *(name for name in (BUFFERS,) if name in state.vectors))
        seed = seed_of(self.plan.seed, "evaluation", "down", state.round)
        parcel = send(state.vectors.only(names), self.plan.codec, "down", seed=seed)
        return Task(
            round=state.round - 1,
            seed=self.plan.seed,
            lr=self.plan.algorithm.lr(state.round - 1, decay=self.plan.lr_decay),
            vectors=parcel.vectors,
            parcel=parcel,
            codecs=self.plan.codec,
            nonce=secrets.token_hex(8),
            run=state.run,
            last_accepted={c: state.last_accepted[c] for c in cohort if c in state.last_accepted},
        )


class Combined(NamedTuple):
    """The combined evaluation of the clients."""

    means: dict[str, float]
    medians: dict[str, float]
    worst: dict[str, float]
    each: dict[int, dict[str, float]]
    clients: int
    left_out: Counter[str]


def combine(
    assessments: Sequence[Assessment], guard: Guard | None, *, lower: Collection[str] = ()
) -> Combined:
    """Return the distribution of the clients' metrics, and count by reason what is left out.

    ``lower`` are the metrics of which a lower value is better, beside those whose name says it.
    """
    limit = None
    if guard is not None and assessments:
        counts = {"examples": [float(one.examples) for one in assessments]}
        limit = guard.limits(guard.remember({}, counts))["examples"]
    mean, values, left_out = Mean(), dict[str, list[float]](), Counter[str]()
    each = dict[int, dict[str, float]]()
    for one in assessments:
        if limit is not None and not limit.least <= one.examples <= limit.most:
            left_out["examples beyond its limit"] += 1
            continue
        # The same numbers as in training, where the square must be finite, too.
        finite = {name: float(v) for name, v in one.metrics.items() if math.isfinite(v * v)}
        left_out["metrics not finite"] += len(finite) < len(one.metrics)
        weight = one.examples if limit is None else limit.within(one.examples)
        mean.fold(Vectors(), weight=weight, scalars=finite)
        each[one.client] = finite
        for name, value in finite.items():
            values.setdefault(name, []).append(value)
    names = sorted(name for name in values if 2 * len(values[name]) > mean.count)
    left_out["metrics of a minority"] += len(values) - len(names)
    means = mean.scalars() if mean.count else {}
    return Combined(
        means={name: means[name] for name in names},
        medians={name: statistics.median(values[name]) for name in names},
        worst={name: _worst(values[name], lower=_falls(name, lower)) for name in names},
        each={} if len(each) > MOST_CLIENTS else _only(each, names),
        clients=mean.count,
        left_out=left_out,
    )


def _falls(name: str, lower: Collection[str]) -> bool:
    """Return whether a lower value of a metric is better."""
    return name in lower or not LOWER.isdisjoint(name.lower().split("_"))


def _worst(values: Sequence[float], *, lower: bool) -> float:
    """Return the mean of the worst tenth of the values, of one value at least."""
    count = math.ceil(len(values) / 10)
    return math.fsum(sorted(values, reverse=lower)[:count]) / count


def _only(
    each: Mapping[int, Mapping[str, float]], names: Sequence[str]
) -> dict[int, dict[str, float]]:
    """Return these metrics of each client, in the order of their numbers."""
    return {
        client: {name: each[client][name] for name in names if name in each[client]}
        for client in sorted(each)
    }


def _breach(answer: Assessment, task: Task) -> str | None:
    """Return what is wrong with an answer, or None if nothing is."""
    if (answer.round, answer.nonce) != (task.round, task.nonce):
        return "reply to another task"
    if not counted(answer.examples):
        return "impossible counts"
    if not (measured(answer.metrics) and all(map(well_named, answer.metrics))):
        return "wrong metrics"
    return None
