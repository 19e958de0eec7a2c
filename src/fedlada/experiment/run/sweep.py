"""Many runs at once: each in a process of its own with one thread, each resumable.

A sweep keeps no state: its directory holds the directories of its runs, and what is not finished
there is what is left to do.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path

import torch

from .directory import RunDirectory
from .rounds import run as run_in

__all__ = ["Standing", "finish"]

TICK = 0.2  # seconds between looks at the processes
PATIENCE = 10.0  # seconds that a process has to end when asked to

# Imported once, by the server that all processes are forked from: they take seconds.
PRELOADED = ("fedlada.experiment.run.sweep", "flwr_datasets.partitioner", "sklearn.model_selection")


@dataclass
class Standing:
    """How a sweep stands."""

    running: list[Path] = field(default_factory=list)
    done: list[Path] = field(default_factory=list)
    failed: list[Path] = field(default_factory=list)


def finish(
    runs: Sequence[Path], *, jobs: int, watch: Callable[[Standing], None] = lambda _: None
) -> Standing:
    """Finish those of the runs that are not, ``jobs`` at a time.

    ``watch`` is told several times a second how things stand.  A run that fails does not stop
    the others; its output is in ``log.txt``.  Whatever ends this function ends the processes.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(PRELOADED))
    waiting, standing = deque(run for run in runs if not RunDirectory(run).finished()), Standing()
    processes: dict[Path, BaseProcess] = {}
    try:
        while waiting or processes:
            while waiting and len(processes) < jobs:
                run = waiting.popleft()
                processes[run] = context.Process(target=_work, args=(run,), daemon=True)
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
    """One run, in a process that ends with the one that started it, even if that is killed."""
    # Ctrl-C is for the parent, which then ends this process in an orderly way.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    with RunDirectory(run).log_file.open("a") as log:
        for stream in (1, 2):
            os.dup2(log.fileno(), stream)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(1)
    print(time.strftime("%Y-%m-%d %H:%M:%S"), "process", os.getpid(), flush=True)
    for _ in run_in(run):
        pass


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)
