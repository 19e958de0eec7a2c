"""Several processes that ``torchrun`` started share every cohort, on one machine or on many.

Each rank runs the same script.  Rank 0 is the server and collects as well; the others collect
until it is done.  Only rank 0 has the state, so nothing has to be kept equal on all of them, and
tallies go to it alone.  Tensors cross by ``torch.distributed``: gloo for those on CPUs, nccl for
those on GPUs.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from ..protocol.engine import Engine
from ..protocol.messages import Task
from ..server.plan import Plan
from ..server.record import Clock
from ..server.state import ServerState
from ..server.tally import Tally
from ..server.waves import Wave, in_waves
from .shares import Costs, Order, Share, order_of, read_share, tensors_of
from .worker import Failed

__all__ = ["Ranks", "launched"]

Shapes = list[tuple[torch.Size, torch.dtype, str]]
"""The shape, the type and the kind of device of each tensor."""


RUNS = itertools.count()


def launched() -> bool:
    """Return whether ``torchrun`` started this process as one of several."""
    return dist.is_available() and dist.is_torchelastic_launched() and _world() > 1


def _world() -> int:
    return int(os.environ.get("WORLD_SIZE", "1"))


@dataclass(frozen=True)
class _Sent:
    """The control words of a wave: the order, the number of the wave, what tensors follow."""

    order: Order
    wave: int
    shapes: Shapes


class Ranks:
    """Collects every cohort with all ranks; the results have the bits of one process."""

    def __init__(self) -> None:
        store, self.rank, self._world = next(iter(rendezvous("env://")))
        # Each run of a script has names of its own in the store that all ranks share.
        self._store = PrefixStore(f"fedlada/{next(RUNS)}", store)
        self._own = not dist.is_initialized()
        if self._own:
            backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
            dist.init_process_group(
                backend, store=self._store, rank=self.rank, world_size=self._world
            )
        self._costs, self._waves = Costs(), 0
        self._midway = self._closed = False

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
        """Send the task to the cohort and return its tally, as one collector would; on rank 0."""
        order, clock = order_of(plan, task, cohort, state), clock or Clock()
        tensors = tensors_of(plan, task, state)

        def shares(wave: Wave) -> Iterator[Tally]:
            found = self._shares(order, tensors, plan, engine, wave)
            return (read_share(share, plan, task, wave) for share in clock.waiting(found))

        return in_waves(plan, task, cohort, state, shares)

    def serve(self, plan: Plan, engine: Engine) -> None:
        """Collect for rank 0 until it is done; on every other rank."""
        while (sent := self._told(None)) is not None:
            tensors = self._broadcast(sent.shapes, None)
            self._reply(self._share(sent, plan, engine, tensors))

    def close(self) -> None:
        """End the work of the other ranks; after an error, ``torchrun`` ends them."""
        if self._midway or self._closed:
            return
        self._closed = True
        if self.rank == 0:
            self._told(None)
        if self._own:
            dist.destroy_process_group()

    def _shares(
        self, order: Order, tensors: list[Tensor], plan: Plan, engine: Engine, wave: Wave
    ) -> Iterator[Share]:
        """Yield this rank's share and those of the others."""
        self._waves, self._midway = self._waves + 1, True
        order = replace(order, clients=self._costs.order(wave.clients), limits=wave.limits)
        sent = _Sent(order, self._waves, _shapes(tensors))
        self._told(sent)
        self._broadcast(sent.shapes, tensors)
        own = self._share(sent, plan, engine, tensors)
        if isinstance(own, Failed):
            raise own.error
        self._costs.learn(own.seconds)
        yield own
        for rank in range(1, self._world):
            share = self._received(rank)
            self._costs.learn(share.seconds)
            yield share
        self._midway = False

    def _share(
        self, sent: _Sent, plan: Plan, engine: Engine, tensors: Sequence[Tensor]
    ) -> Share | Failed:
        key = f"taken in wave {sent.wave}"
        try:
            return sent.order.share(plan, engine, tensors, lambda: self._store.add(key, 1) - 1)
        except Exception as error:
            return Failed.of(error)

    def _told(self, sent: _Sent | None) -> _Sent | None:
        """Send control words from rank 0 to all; return them."""
        words: list[Any] = [sent]
        dist.broadcast_object_list(words, src=0)
        found: _Sent | None = words[0]
        return found

    def _broadcast(self, shapes: Shapes, tensors: list[Tensor] | None) -> list[Tensor]:
        """Send tensors from rank 0 to all; return them."""
        found = _empty(shapes) if tensors is None else [t.contiguous() for t in tensors]
        for t in found:
            dist.broadcast(t, src=0)
        return found

    def _reply(self, share: Share | Failed) -> None:
        """Send a share, or an error, to rank 0."""
        if isinstance(share, Failed):
            dist.send_object_list([share], dst=0)
            return
        named = {name: _shapes(ts) for name, ts in share.tensors.items()}
        dist.send_object_list([(share.header, named, share.seconds)], dst=0)
        for ts in share.tensors.values():
            for t in ts:
                dist.send(t.contiguous(), dst=0)

    def _received(self, rank: int) -> Share:
        words: list[Any] = [None]
        dist.recv_object_list(words, src=rank)
        if isinstance(words[0], Failed):
            raise words[0].raised()
        header, named, seconds = words[0]
        tensors = {name: _empty(shapes) for name, shapes in named.items()}
        for ts in tensors.values():
            for t in ts:
                dist.recv(t, src=rank)
        return Share(header, tensors, seconds)


def _shapes(tensors: Sequence[Tensor]) -> Shapes:
    return [(t.shape, t.dtype, t.device.type) for t in tensors]


def _empty(shapes: Shapes) -> list[Tensor]:
    """Return tensors of these shapes, on this process's own device of each kind."""
    return [torch.empty(shape, dtype=dtype, device=kind) for shape, dtype, kind in shapes]
