"""Several processes of one machine that share every cohort.

Workers are forked when the first round begins, so they have the model, the data and the training
loop without any pickling, and they live as long as the run.  Tensors cross in shared memory,
control words over pipes.  Which worker trains which client affects no bit of the result.  The
shared memory belongs to no file system, so a small ``/dev/shm``, as in containers, does not matter
(a lock of a few bytes is there), and the system takes it back when the last process that has it
ends, however it ends.
"""

from __future__ import annotations

import logging
import mmap
import multiprocessing
import os
import pickle
import shutil
import signal
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkContext, ForkProcess
from multiprocessing.sharedctypes import Synchronized
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..devices import CPU, device_of
from ..errors import FedladaError, require
from ..processes import end_with_parent
from ..protocol.engine import Engine
from ..protocol.messages import Task
from ..server.collect.order import Order, Sealed
from ..server.collect.tally import Tally
from ..server.collect.waves import Wave, in_waves
from ..server.plan import Plan
from ..server.record import Clock
from ..server.state import ServerState
from .shares import Costs, Share, collect_share, read_share
from .timed import Timetable

__all__ = ["Failed", "WorkerDied", "Workers", "check_fork"]

log = logging.getLogger("fedlada")

START = 60.0
"""Seconds that a worker has until it says that it is ready."""

SILENCE = 600.0
"""Seconds on one client after which the log names the worker, and again after twice as many."""

NOBODY = -1
"""The number of the client that a worker trains while it trains none."""

AGAIN = "a run with checkpoints continues from the last one when the same is run again"

ALIGNED = 64
"""The address of each tensor in shared memory is a multiple of this."""


class WorkerDied(FedladaError):
    """A worker process ended before its work did."""


def check_fork(model: nn.Module) -> None:
    """Raise an error where a forked process could not train the model."""
    require(
        sys.platform == "linux",
        f"workers are forked, which is not safe on {sys.platform}; leave workers out, or start the"
        " same script with torchrun --nproc-per-node=N",
    )
    device = device_of(model)
    require(
        device == CPU and not torch.cuda.is_initialized(),  # type: ignore[no-untyped-call]
        f"{'CUDA' if device == CPU else device} is in use in this process, and a forked worker"
        " could not use it; leave workers out, or start one process for each device: torchrun"
        " --nproc-per-node=N",
    )


class Workers:
    """Collects every cohort with ``count`` processes; the results have the bits of one."""

    def __init__(
        self,
        count: int,
        plan: Plan,
        engine: Engine,
        scratch: str | None = None,
        *,
        timetable: Timetable | None = None,
    ) -> None:
        """Start no process yet; the directory ``scratch`` is deleted when the workers end."""
        self._count, self._plan, self._engine = count, plan, engine
        self._timetable, self.waits = timetable, timetable is not None
        self._costs = Costs()
        self._sent = SharedTensors()
        self._members: list[_Member] = []
        self._end = weakref.finalize(self, _end, os.getpid(), self._members, self._sent, scratch)

    def collect(self, task: Task, cohort: Sequence[int], state: ServerState, clock: Clock) -> Tally:
        """Send the task to the cohort and return its tally, as one collector would."""
        if not self._members:
            self._start()
        plan, order = self._plan, Order.of(self._plan, task, cohort, state)

        def shares(wave: Wave) -> Iterator[Tally]:
            return clock.waiting(self._shares(order, wave))

        timed = None
        if self._timetable is not None:
            start = state.time or 0.0
            timed = self._timetable.arrivals(task.round, cohort, start, state.flights)
        return in_waves(plan, task, cohort, state, shares, timed)

    def close(self) -> None:
        """End the workers."""
        self._end()

    def _start(self) -> None:
        require(self._end.alive, "this run was closed, and its workers ended; start another")
        require(
            not multiprocessing.current_process().daemon,
            "this is a daemonic process, such as those of multiprocessing.Pool, and it may start"
            " no workers; leave workers out, or start it by concurrent.futures.ProcessPoolExecutor",
        )
        try:
            self._fork()
        except OSError as error:
            raise FedladaError(
                f"the system refused what workers need ({error}): processes, a few open files, and"
                " a lock in /dev/shm. Raise ulimit -u or ulimit -n, make room in /dev/shm, or leave"
                " workers out"
            ) from error
        for member in self._members:
            require(
                member.connection.poll(START),
                f"{member} did not start within {START:.0f} s: another thread of this program held"
                " a lock when it was forked. Start the run before such threads, or leave workers"
                " out",
            )
            member.receive("before the first round")

    def _fork(self) -> None:
        context = multiprocessing.get_context("fork")
        self._taken = context.Value("q", 0)
        for number in range(1, self._count + 1):
            (here, there), block, desk = context.Pipe(), SharedTensors(), Desk(context)
            process = context.Process(
                target=work,
                args=(self._plan, self._engine, there, self._sent, block, self._taken, desk),
                name=f"worker {number} of {self._count}",
            )
            process.start()
            there.close()
            self._members.append(_Member(process, here, block, desk))

    def _shares(self, order: Order, wave: Wave) -> Iterator[Tally]:
        """Yield the tallies of the workers' shares of a wave, in the order in which they come."""
        task, clients = order.task, self._costs.order(wave.clients)
        sealed, tensors = order.share(clients, wave.limits).sealed()
        job, when = Job(sealed, self._sent.write(tensors)), _when(task)
        self._taken.value = 0
        busy = self._members[: len(clients)]
        for member in busy:
            member.send(job, when)
        while busy:
            sources = [m.connection for m in busy] + [m.process.sentinel for m in self._members]
            ready = wait(sources, SILENCE / 10)
            for member in busy if not ready else ():
                member.warn_if_silent(when)
            for member in self._members:
                if member.connection in ready:
                    busy.remove(member)
                    done = member.receive(when)
                    self._costs.learn(done.seconds)
                    yield read_share(member.share(done, wave), self._plan, task, wave)
                elif member.process.sentinel in ready:
                    raise member.died(when)


class _Member:
    """A worker as its parent sees it."""

    def __init__(
        self, process: ForkProcess, connection: Connection, block: SharedTensors, desk: Desk
    ) -> None:
        self.process, self.connection, self._block, self._desk = process, connection, block, desk
        self._began, self._silence = 0.0, SILENCE

    def __str__(self) -> str:
        return f"{self.process.name} (process {self.process.pid})"

    def send(self, job: Job, when: str) -> None:
        """Give the worker a job."""
        self._desk.change(NOBODY)
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

    def warn_if_silent(self, when: str) -> None:
        """Log what the worker does if it has done the same for long; rarer every time."""
        client, began = self._desk.read()
        if began != self._began:
            self._began, self._silence = began, SILENCE
        seconds = time.monotonic() - began
        if seconds < self._silence:
            return
        self._silence *= 2
        what = "has begun no client" if client == NOBODY else f"has been training client {client}"
        log.warning(
            "%s %s for %.0f s %s. The round waits for it. If the process is stopped, kill -CONT %d"
            " lets it go on; if it hangs, kill %d ends the run, and %s",
            self,
            what,
            seconds,
            when,
            self.process.pid,
            self.process.pid,
            AGAIN,
        )

    def share(self, done: Done, wave: Wave) -> Share:
        """Return views of the shared memory, or copies if a later wave will overwrite it.

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


def _when(task: Task) -> str:
    return f"in round {task.round + 1}"


def _end(owner: int, members: list[_Member], sent: SharedTensors, scratch: str | None) -> None:
    if os.getpid() != owner:  # a worker has a copy of this object
        return
    for member in members:
        member.end()
    sent.close()
    if scratch is not None:
        shutil.rmtree(scratch, ignore_errors=True)


@dataclass(frozen=True)
class Job:
    """An order, and where its tensors lie."""

    order: Sealed
    places: Sequence[Place]


@dataclass(frozen=True)
class Done:
    """The tally of a share as plain values, where its tensors lie, and what each client cost."""

    header: Mapping[str, Any] = field(default_factory=dict)
    places: Mapping[str, Sequence[Place]] = field(default_factory=dict)
    seconds: Mapping[int, float] = field(default_factory=dict)


class RemoteError(Exception):
    """The traceback of an error in another process; it is the cause of the error raised here."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


@dataclass(frozen=True)
class Failed:
    """An error of the worker, and its traceback as text."""

    error: Exception
    text: str

    @classmethod
    def of(cls, error: Exception) -> Failed:
        """Return the error as it can cross to another process."""
        text = "".join(traceback.format_exception(error))
        try:
            pickle.loads(pickle.dumps(error))
        except Exception:  # errors of other packages may have a constructor that pickle cannot call
            return cls(FedladaError(f"{type(error).__name__}: {error}"), text)
        return cls(error, text)

    @property
    def no_memory(self) -> bool:
        """Whether there was no memory left."""
        return "MemoryError" in self.text or "can't allocate memory" in self.text

    def raised(self) -> Exception:
        """Return the error to raise, with the other process's traceback as its cause."""
        self.error.__cause__ = RemoteError(self.text)
        return self.error


class Desk:
    """Says, in memory that a worker shares with its parent, which client it trains since when."""

    def __init__(self, context: ForkContext) -> None:
        self._values = context.RawArray("d", (NOBODY, time.monotonic()))

    def change(self, client: int) -> None:
        """Say that the worker now trains another client, or nobody."""
        self._values[:] = [client, time.monotonic()]

    def read(self) -> tuple[int, float]:
        """Return the client, and the time at which this was said."""
        client, began = self._values[:]
        return int(client), began


def work(
    plan: Plan,
    engine: Engine,
    connection: Connection,
    sent: SharedTensors,
    block: SharedTensors,
    taken: Synchronized[int],
    desk: Desk,
) -> None:
    """Carry out orders until the parent closes the connection; torch uses one thread."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles it, and ends this process
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threading.Thread(target=end_with_parent, daemon=True).start()
    torch.set_num_threads(1)

    def take(clients: Sequence[int]) -> int:
        desk.change(NOBODY)
        with taken.get_lock():
            taken.value += 1
            position = taken.value - 1
        desk.change(clients[position] if position < len(clients) else NOBODY)
        return position

    connection.send(Done())
    while True:
        job: Job = connection.recv()
        try:
            order = job.order.opened(sent.read(job.places), plan.codec)
            share = collect_share(order, plan, engine, partial(take, order.clients))
            places = iter(block.write(t for ts in share.tensors.values() for t in ts))
            named = {name: [next(places) for _ in ts] for name, ts in share.tensors.items()}
            done: Done | Failed = Done(share.header, named, share.seconds)
            del share, order
        except Exception as error:
            done = Failed.of(error)
        connection.send(done)
        del job


class Place(NamedTuple):
    """Where a tensor lies, and how it is to be seen."""

    start: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype

    @property
    def end(self) -> int:
        """The first byte after the tensor."""
        return self.start + torch.Size(self.shape).numel() * self.dtype.itemsize


class SharedTensors:
    """A block of memory with tensors in it; make it before forking.

    Only one process may write at a time, and only while no other reads.
    """

    def __init__(self) -> None:
        self._file = os.memfd_create("fedlada")
        self._map: mmap.mmap | None = None

    def write(self, tensors: Iterable[Tensor]) -> list[Place]:
        """Copy tensors into the block, over all that it had, and return their places."""
        tensors = list(tensors)
        places, end = list[Place](), 0
        for t in tensors:
            start = -(-end // ALIGNED) * ALIGNED
            stride = torch.empty_like(t, device="meta").stride()  # dense, even if t is not
            places.append(Place(start, tuple(t.shape), stride, t.dtype))
            end = places[-1].end
        if end > os.fstat(self._file).st_size:
            try:
                os.ftruncate(self._file, end)
            except OSError as error:
                raise FedladaError(
                    f"the memory that workers share cannot grow to {end} bytes ({error}); raise"
                    " ulimit -f, or leave workers out"
                ) from error
        with torch.no_grad():
            for t, view in zip(tensors, self.read(places), strict=True):
                view.copy_(t)
        return places

    def read(self, places: Sequence[Place]) -> list[Tensor]:
        """Return the tensors at these places, which share the block's memory."""
        end = max((place.end for place in places), default=0)
        if end and (self._map is None or len(self._map) < end):
            self._map = mmap.mmap(self._file, 0)
        return [self._view(place) for place in places]

    def close(self) -> None:
        """Give the memory back once no tensor refers to it."""
        self._map = None
        os.close(self._file)

    def _view(self, place: Place) -> Tensor:
        start, shape, stride, dtype = place
        count = torch.Size(shape).numel()
        if not count or self._map is None:
            return torch.empty_strided(shape, stride, dtype=dtype)
        flat = torch.frombuffer(self._map, dtype=dtype, count=count, offset=start)
        return flat.as_strided(shape, stride)
