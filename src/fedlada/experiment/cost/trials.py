"""Trials: small federations whose rounds are timed, taking turns.

Rounds of all trials alternate, so that a machine that is slow for a while is slow for all of them.
"""

from __future__ import annotations

import copy
import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from torch import nn

from ... import simulate
from ...client.store import DiskStore, MemoryStore
from ...client.training import LocalTraining
from ...engines.around import Around
from ...engines.in_process import ClientDatasets, InProcess
from ...protocol.messages import Failure, Reply, Task
from ...server.checkpoint import Checkpoints
from ...server.plan import Plan
from ...server.record import RoundRecord
from ...server.sampling import FixedSize
from ..config.experiment import Experiment
from ..run.problem import Problem

__all__ = ["Clock", "Sample", "Trial", "turns"]

Clock = Callable[[], float]
FEWEST, MOST = 3, 100
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
