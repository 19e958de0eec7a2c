"""What a worker process does: it collects its share of every wave until its parent ends."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import threading
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.sharedctypes import Synchronized
from typing import Any

import torch

from ..errors import FedladaError
from ..protocol.engine import Engine
from ..server.plan import Plan
from .shared import Place, SharedTensors
from .shares import Order

__all__ = ["Done", "Failed", "Job", "RemoteError", "end_with_parent", "work"]


@dataclass(frozen=True)
class Job:
    """An order, and where its tensors lie."""

    order: Order
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
        except Exception:  # an error of somebody else's, with a constructor of its own
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


def work(
    plan: Plan,
    engine: Engine,
    connection: Connection,
    sent: SharedTensors,
    block: SharedTensors,
    taken: Synchronized[int],
) -> None:
    """Carry out orders until the parent closes the connection, with one thread of torch's."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles it, and ends this process
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threading.Thread(target=end_with_parent, daemon=True).start()
    torch.set_num_threads(1)

    def take() -> int:
        with taken.get_lock():
            taken.value += 1
            return taken.value - 1

    connection.send(Done())
    while True:
        job: Job = connection.recv()
        try:
            share = job.order.share(plan, engine, sent.read(job.places), take)
            places = iter(block.write(t for ts in share.tensors.values() for t in ts))
            named = {name: [next(places) for _ in ts] for name, ts in share.tensors.items()}
            done: Done | Failed = Done(share.header, named, share.seconds)
            del share
        except Exception as error:
            done = Failed.of(error)
        connection.send(done)
        del job


def end_with_parent() -> None:
    """End this process as soon as the process that started it has ended."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)
