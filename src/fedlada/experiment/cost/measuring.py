"""Measuring the constants of this machine by real rounds of the very experiment, in miniature.

Three small federations take turns, round by round, so that a machine that is slow for a while is
slow for all of them: few clients of one step, as many of several steps, and more of one step.
Two of them give the cost of a step and of a client, two that of a reply and of a round.  The same
three on a tiny model give the parts that do not grow with the model.
"""

from __future__ import annotations

import copy
import dataclasses
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import nn

from ... import simulate
from ...client.store import DiskStore, MemoryStore
from ...client.training import LocalTraining
from ...data import ClientData
from ...engines.around import Around
from ...engines.in_process import ClientDatasets, InProcess
from ...errors import ExperimentError
from ...protocol.messages import Failure, Reply, Task
from ...server.checkpoint import Checkpoints
from ...server.plan import Plan
from ...server.record import RoundRecord
from ...server.sampling import FixedSize
from ..config.experiment import Experiment
from ..run.problem import Problem
from .constants import Constants
from .formula import Workload

__all__ = ["Clock", "Sample", "Trial", "fit", "turns"]

Clock = Callable[[], float]
MORE = 2
"""The third federation has so many clients more than the first."""
FEWEST, MOST = 3, 25
"""Rounds of each federation that count: as many as the time allows, between these."""


@dataclass(frozen=True)
class Sample:
    """What a round took, in seconds."""

    client: float
    """Of all its clients."""
    server: float
    save: float
    record: RoundRecord

    @property
    def round(self) -> float:
        """Seconds of the round without its checkpoint, as in its record."""
        return self.client + self.server


@dataclass(frozen=True, kw_only=True)
class Trial:
    """A federation to time: a model, its clients, and the size of a round."""

    model: nn.Module
    clients: ClientDatasets[Any]
    train: LocalTraining
    plan: Plan
    cohort: int
    steps: int

    @classmethod
    def of(cls, config: Experiment, problem: Problem, *, cohort: int, steps: int) -> Trial:
        """Return rounds of an experiment with another cohort and other steps."""
        return cls(
            model=problem.model,
            clients=problem.clients,
            train=problem.train,
            plan=config.plan(),
            cohort=cohort,
            steps=steps,
        )

    def samples(self, directory: Path, clock: Clock) -> Iterator[Sample]:
        """Run rounds without end and yield what each took."""
        plan = dataclasses.replace(
            self.plan, rounds=10**9, sampling=FixedSize(self.cohort), target=None, minimum=1
        )
        train = dataclasses.replace(self.train, steps=self.steps, epochs=None)
        saving = _Timed(directory, clock)
        inner = InProcess(
            plan.algorithm,
            copy.deepcopy(self.model),
            self.clients,
            train,
            store=DiskStore(saving.clients) if plan.algorithm.client_state else MemoryStore(),
            buffers=plan.buffers,
        )
        engine = _Watched(inner, clock)
        with simulate(
            self.model,
            self.clients,
            train=train,
            engine=engine,
            checkpoints=saving,
            **plan.settings(),
        ) as run:
            began = clock()
            for record in run:
                whole = clock() - began
                server = whole - engine.seconds - saving.seconds
                yield Sample(engine.seconds, server, saving.seconds, record)
                engine.seconds = saving.seconds = 0.0
                began = clock()


class _Watched(Around):
    """Counts the seconds that clients take."""

    def __init__(self, engine: InProcess[Any], clock: Clock) -> None:
        super().__init__(engine)
        self._clock, self.seconds = clock, 0.0

    def exchange(self, task: Task, cohort: Sequence[int]) -> Iterator[Reply | Failure]:
        began = self._clock()
        for reply in self._engine.exchange(task, cohort):
            self.seconds += self._clock() - began
            yield reply
            began = self._clock()
        self.seconds += self._clock() - began


class _Timed(Checkpoints):
    """Counts the seconds that saving takes."""

    def __init__(self, directory: Path, clock: Clock) -> None:
        super().__init__(directory)
        self._clock, self.seconds = clock, 0.0

    def save(self, *given: Any, **named: Any) -> int:
        began = self._clock()
        try:
            return super().save(*given, **named)
        finally:
            self.seconds += self._clock() - began


def turns(
    trials: Sequence[Trial], *, seconds: float, clock: Clock = time.perf_counter
) -> list[list[Sample]]:
    """Let the trials take turns for about so many seconds; the first round of each is warm-up."""
    with ExitStack() as stack:
        running = []
        for trial in trials:
            directory = stack.enter_context(TemporaryDirectory())
            running.append(trial.samples(Path(directory) / "run", clock))
            stack.callback(running[-1].close)  # type: ignore[attr-defined]
        for samples in running:
            next(samples)
        found: list[list[Sample]] = [[] for _ in trials]
        end = time.perf_counter() + seconds
        while len(found[0]) < FEWEST or (time.perf_counter() < end and len(found[0]) < MOST):
            for samples, seen in zip(running, found, strict=True):
                seen.append(next(samples))
        return found


def fit(
    config: Experiment,
    problem: Problem,
    work: Workload,
    others: Sequence[Trial] = (),
    *,
    seconds: float = 4.0,
    clock: Clock = time.perf_counter,
) -> tuple[Constants, list[list[Sample]]]:
    """Measure the constants; ``others`` take part in the turns and do not enter them."""
    plan = config.plan()
    few = getattr(plan.aggregator(), "least", 1)
    if len(problem.clients) < few + MORE:
        raise ExperimentError(
            f"there are {len(problem.clients)} clients; measuring needs {few + MORE}: give"
            f" data.clients={few + MORE} or more, or leave --measure out."
        )
    own = Trial.of(config, problem, cohort=few, steps=1)
    (probe,) = turns([own], seconds=0.0, clock=clock)
    many = 1 + min(max(round(0.2 * few / _middle(probe, "client")), 2), 20)
    trials = _three(own, few, many)
    found = turns([*trials, *others], seconds=seconds, clock=clock)
    tiny = turns(_three(_tiny(plan, config), few, 21), seconds=seconds / 4, clock=clock)
    step, client, reply, update, save = _solved(found, few, many)
    least = _solved(tiny, few, 21)
    fixed = [min(a, b) for a, b in zip(least, (step, client, reply, update, save), strict=True)]
    constants = Constants(
        source=f"measured on this machine, {len(found[0])} rounds each",
        step=fixed[0],
        flop=(step - fixed[0]) / max(work.flops, 1),
        client=fixed[1],
        client_element=(client - fixed[1]) / (work.down + work.up),
        reply=fixed[2],
        reply_element=(reply - fixed[2]) / work.up,
        round=fixed[3],
        round_element=(update - fixed[3]) / work.state,
        save=fixed[4],
        save_byte=(save - fixed[4]) / work.bytes_state,
    )
    return constants, found[len(trials) :]


def _three(trial: Trial, few: int, many: int) -> list[Trial]:
    return [
        dataclasses.replace(trial, cohort=few, steps=1),
        dataclasses.replace(trial, cohort=few, steps=many),
        dataclasses.replace(trial, cohort=few + MORE, steps=1),
    ]


def _solved(
    found: Sequence[Sequence[Sample]], few: int, many: int
) -> tuple[float, float, float, float, float]:
    """Return the seconds of a step, a client, a reply, a round and a checkpoint."""
    one, long, more = found[:3]
    step = max(_longer(one, long, "client") / (few * (many - 1)), 0.0)
    client = max(_middle(one, "client") / few - step, 0.0)
    reply = max(_longer(one, more, "server") / MORE, 0.0)
    update = max(_middle(one, "server") - few * reply, 0.0)
    return step, client, reply, update, _middle(one, "save")


def _middle(samples: Sequence[Sample], name: str) -> float:
    return float(statistics.median(getattr(sample, name) for sample in samples))


def _longer(one: Sequence[Sample], other: Sequence[Sample], name: str) -> float:
    """Return how much longer the other takes, as the median over pairs of the same turn."""
    pairs = zip(one, other, strict=True)
    return float(statistics.median(getattr(b, name) - getattr(a, name) for a, b in pairs))


def _tiny(plan: Plan, config: Experiment) -> Trial:
    """Return the same algorithm on a model of a few numbers, for what does not grow."""
    generator = torch.Generator().manual_seed(0)
    clients = [
        ClientData(torch.randn(20, 4, generator=generator), torch.arange(20) % 2) for _ in range(20)
    ]
    with torch.random.fork_rng(devices=[]):
        model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    train = LocalTraining(steps=1, batch_size=min(config.train.batch_size, 20))
    return Trial(model=model, clients=clients, train=train, plan=plan, cohort=1, steps=1)
