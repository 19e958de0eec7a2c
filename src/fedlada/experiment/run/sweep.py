"""Several runs at a time, each in a separate process with one thread, each resumable.

Runs with ``engine.workers`` have as many processes that compute, so fewer run at a time: by default
there are no more processes than cores.

A sweep has no state of its own: its directory contains the directories of its runs, and the
unfinished runs are the remaining work.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path

import torch

from ...errors import FedladaError
from ...processes import end_with_parent
from .directory import RunDirectory
from .execute import run as run_in

__all__ = ["CORES", "PRELOADED", "Standing", "at_a_time", "finish"]

CORES = os.cpu_count() or 1

TICK = 0.2  # seconds between checks of the processes
PATIENCE = 10.0  # seconds that a terminated process has before it is killed

# Importing these takes seconds, so the fork server imports them once for all processes.
PRELOADED = ("fedlada.experiment.run.sweep", "flwr_datasets.partitioner")


@dataclass
class Standing:
    """The state of a sweep: its running, finished and failed runs."""

    running: list[Path] = field(default_factory=list)
    done: list[Path] = field(default_factory=list)
    failed: list[Path] = field(default_factory=list)


def at_a_time(runs: Sequence[Path], jobs: int | None, *, cores: int = CORES) -> tuple[int, str]:
    """Return how many runs to do at a time, and a sentence if they have more than the cores.

    By default ``jobs`` times the workers of a run is at most the number of cores.
    """
    workers = max((RunDirectory(run).experiment().engine.workers for run in runs), default=1)
    number = max(1, cores // workers) if jobs is None else jobs
    processes = min(number, len(runs)) * workers
    if processes <= cores:
        return number, ""
    advice = "give fewer --jobs" if number > 1 else "give fewer"
    return number, (
        f"{number} at a time with engine.workers = {workers} are {processes} processes on {cores}"
        f" cores, which is slower than one for each core; {advice}"
    )


def finish(
    runs: Sequence[Path],
    *,
    jobs: int,
    watch: Callable[[Standing], None] = lambda _: None,
    until: float = math.inf,
) -> Standing:
    """Run the unfinished runs to their end, or until a time of the monotonic clock.

    ``jobs`` of them run at a time.  ``watch`` is called with the state several times a second.
    A run that fails does not stop the others; its output is in ``log.txt``.  The processes end
    when this function returns or raises.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(PRELOADED))
    waiting, standing = deque(run for run in runs if not RunDirectory(run).finished()), Standing()
    processes: dict[Path, BaseProcess] = {}
    try:
        while (waiting or processes) and time.monotonic() < until:
            while waiting and len(processes) < jobs:
                run = waiting.popleft()
                processes[run] = context.Process(target=_work, args=(run,))
                processes[run].start()
            wait([process.sentinel for process in processes.values()], timeout=TICK)
            for run, process in list(processes.items()):
                if process.exitcode is not None:
                    (standing.failed if process.exitcode else standing.done).append(run)
                    del processes[run]
            standing.running = list(processes)
            watch(standing)
    finally:
        for process in processes.values():
            process.terminate()
        for process in processes.values():
            process.join(PATIENCE)
            process.kill()
    return standing


def _work(run: Path) -> None:
    """Do one run in this process, which ends with its parent even if the parent is killed."""
    # Only the parent handles Ctrl-C; it then terminates this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    with RunDirectory(run).log_file.open("a") as log:
        for stream in (1, 2):
            os.dup2(log.fileno(), stream)
    end_with_parent()
    torch.set_num_threads(1)
    print(time.strftime("%Y-%m-%d %H:%M:%S"), "process", os.getpid(), flush=True)
    try:
        for _ in run_in(run):
            pass
    except FedladaError as error:  # its sentence is enough, and the last line of the log
        sys.exit(str(error))
