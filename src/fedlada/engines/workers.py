"""Several processes of one machine that share every cohort.

Workers are forked when the first round begins, so they have the model, the data and the training
loop without any pickling, and they live as long as the run.  Tensors cross in shared memory,
control words over pipes.  Which worker trains which client affects no bit of the result.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import replace
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess

import torch

from ..errors import FedladaError, require
from ..protocol.engine import Engine
from ..protocol.messages import Task
from ..server.plan import Plan
from ..server.record import Clock
from ..server.state import ServerState
from ..server.tally import Tally
from ..server.waves import Wave, in_waves
from .shared import SharedTensors
from .shares import Costs, Share, order_of, read_share, tensors_of
from .worker import Done, Failed, Job, work

__all__ = ["WorkerDied", "Workers", "check_fork"]

START = 60.0
"""Seconds that a worker has until it says that it is ready."""

AGAIN = "a run with checkpoints goes on from the last one when the same is run again"


class WorkerDied(FedladaError):
    """A worker process ended before its work did."""


def check_fork() -> None:
    """Raise an error where a forked process could not train."""
    require(
        sys.platform == "linux",
        f"workers are forked, which is not safe on {sys.platform}; leave workers out, or start the"
        " same script with torchrun --nproc-per-node=N",
    )
    require(
        not torch.cuda.is_initialized(),  # type: ignore[no-untyped-call]
        "CUDA is in use in this process, and a forked worker could not use it; leave workers out"
        " and start one process for each GPU: torchrun --nproc-per-node=N",
    )


class Workers:
    """Collects every cohort with ``count`` processes; the results have the bits of one."""

    def __init__(self, count: int) -> None:
        check_fork()
        self._count, self._costs = count, Costs()
        self._sent = SharedTensors()
        self._members: list[_Member] = []
        self._directories: list[str] = []
        all_of_it = (os.getpid(), self._members, self._sent, self._directories)
        self._end = weakref.finalize(self, _end, *all_of_it)

    def collect(
        self,
        plan: Plan,
        engine: Engine,
        task: Task,
        cohort: Sequence[int],
        state: ServerState,
        *,
        clock: Clock | None = None,
    ) -> Tally:
        """Send the task to the cohort and return its tally, as one collector would."""
        if not self._members:
            self._start(plan, engine)
        order, clock = order_of(plan, task, cohort, state), clock or Clock()
        job = Job(order, self._sent.write(tensors_of(plan, task, state)))

        def shares(wave: Wave) -> Iterator[Tally]:
            return clock.waiting(self._shares(job, plan, task, wave))

        return in_waves(plan, task, cohort, state, shares)

    def directory(self) -> str:
        """Make a directory that lasts as long as the workers, for what clients keep."""
        self._directories.append(tempfile.mkdtemp(prefix="fedlada-"))
        return self._directories[-1]

    def close(self) -> None:
        """End the workers."""
        self._end()

    def _start(self, plan: Plan, engine: Engine) -> None:
        require(self._end.alive, "this run was closed, and its workers ended; start another")
        context = multiprocessing.get_context("fork")
        self._taken = context.Value("q", 0)
        for number in range(1, self._count + 1):
            (here, there), block = context.Pipe(), SharedTensors()
            process = context.Process(
                target=work,
                args=(plan, engine, there, self._sent, block, self._taken),
                name=f"worker {number} of {self._count}",
            )
            process.start()
            there.close()
            self._members.append(_Member(process, here, block))
        for member in self._members:
            require(
                member.connection.poll(START),
                f"{member} did not start within {START:.0f} s: another thread of this program held"
                " a lock when it was forked. Start the run before such threads, or leave workers"
                " out",
            )
            member.receive("before the first round")

    def _shares(self, job: Job, plan: Plan, task: Task, wave: Wave) -> Iterator[Tally]:
        """Yield the tallies of the workers' shares of a wave, in the order in which they come."""
        clients, when = self._costs.order(wave.clients), f"in round {task.round + 1}"
        job = replace(job, order=replace(job.order, clients=clients, limits=wave.limits))
        self._taken.value = 0
        busy = self._members[: len(clients)]
        for member in busy:
            member.send(job, when)
        while busy:
            ready = wait([m.connection for m in busy] + [m.process.sentinel for m in self._members])
            for member in self._members:
                if member.connection in ready:
                    busy.remove(member)
                    done = member.receive(when)
                    self._costs.learn(done.seconds)
                    yield read_share(member.share(done, wave), plan, task, wave)
                elif member.process.sentinel in ready:
                    raise member.died(when)


class _Member:
    """A worker as its parent sees it."""

    def __init__(self, process: ForkProcess, connection: Connection, block: SharedTensors) -> None:
        self.process, self.connection, self._block = process, connection, block

    def __str__(self) -> str:
        return f"{self.process.name} (process {self.process.pid})"

    def send(self, job: Job, when: str) -> None:
        """Give the worker a job."""
        try:
            self.connection.send(job)
        except OSError as error:
            raise self.died(when) from error

    def receive(self, when: str) -> Done:
        """Return what the worker has done; raise its error, or that it is gone."""
        try:
            message: Done | Failed = self.connection.recv()
        except (EOFError, OSError) as error:
            raise self.died(when) from error
        if isinstance(message, Done):
            return message
        if message.no_memory:
            raise WorkerDied(
                f"{self} had no memory left {when}: {message.error}. Use fewer workers or smaller"
                f" batches; {AGAIN}"
            ) from message.raised()
        raise message.raised()

    def share(self, done: Done, wave: Wave) -> Share:
        """Return a share in the shared memory, or copies if that is written to while they live.

        Sums are added up at once; single replies may stay in the tally until the round ends.
        """
        tensors = {name: self._block.read(places) for name, places in done.places.items()}
        if not wave.last and (done.header["held"] or not wave.empty().total.is_mean):
            tensors = {name: [t.clone() for t in ts] for name, ts in tensors.items()}
        return Share(done.header, tensors)

    def died(self, when: str) -> WorkerDied:
        """Return the error that says how the worker ended."""
        self.process.join(1.0)
        code = self.process.exitcode or 0
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with {code}"
        return WorkerDied(
            f"{self} {how} {when}. If the machine had no memory left, use fewer workers; {AGAIN}"
        )

    def end(self) -> None:
        """End the worker, whatever it does: what it has not sent is of no use."""
        self.process.kill()
        self.process.join()
        self.connection.close()
        self._block.close()


def _end(owner: int, members: list[_Member], sent: SharedTensors, directories: list[str]) -> None:
    if os.getpid() != owner:  # a worker has a copy of this object
        return
    for member in members:
        member.end()
    sent.close()
    for directory in directories:
        shutil.rmtree(directory, ignore_errors=True)
