"""Several processes that ``torchrun`` started share every cohort, on one machine or on many.

Each rank runs the same script.  Rank 0 is the server and collects as well; the others collect
until it is done.  Only rank 0 has the state, so nothing has to be kept equal on all of them, and
tallies go to it alone.  Tensors cross by gloo of ``torch.distributed``, in the memory of the CPUs,
whatever device each rank trains on.

Ranks trust their network.  The store that ``torchrun`` starts listens on all interfaces and asks
for no key, and control words are pickles: that is torch's model of trust, and cannot be changed
here, because the store is there before the script begins.
"""

from __future__ import annotations

import itertools
import os
import secrets
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from ..devices import CPU
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
from .workers import Failed

__all__ = ["Ranks", "launched"]

Shapes = list[tuple[torch.Size, torch.dtype]]
"""The shape and the type of each tensor."""


RUNS = itertools.count()


def launched() -> bool:
    """Return whether ``torchrun`` started this process as one of several."""
    return dist.is_available() and dist.is_torchelastic_launched() and _world() > 1


def _world() -> int:
    return int(os.environ.get("WORLD_SIZE", "1"))


@dataclass(frozen=True)
class _Sent:
    """The control words of a wave: the order, the number of the wave, what tensors follow."""

    order: Sealed
    wave: int
    shapes: Shapes


class Ranks:
    """Collects every cohort with all ranks; the results have the bits of one process."""

    def __init__(
        self,
        plan: Plan,
        engine: Engine,
        device: torch.device = CPU,
        *,
        timetable: Timetable | None = None,
    ) -> None:
        """``device`` is where this rank has its vectors."""
        self._plan, self._engine, self._device = plan, engine, device
        self._timetable, self.waits = timetable, timetable is not None
        store, self.rank, self._world = next(iter(rendezvous("env://")))
        # Each run of a script uses different names in the store that all ranks share.
        self._store = PrefixStore(f"fedlada/{next(RUNS)}", store)
        self._own = not dist.is_initialized()
        self._group: dist.ProcessGroup | None = None
        if self._own:
            dist.init_process_group(
                "gloo", store=self._store, rank=self.rank, world_size=self._world
            )
        elif "gloo" not in dist.get_backend():
            self._group = dist.new_group(backend="gloo")
        # Anyone who reaches the store can change it, so its keys cannot be known in advance.
        self._nonce = self._from_rank_0(secrets.token_hex(8))
        self._costs, self._waves = Costs(), 0
        self._midway = self._closed = False

    def collect(self, task: Task, cohort: Sequence[int], state: ServerState, clock: Clock) -> Tally:
        """Send the task to the cohort and return its tally, as one collector would; on rank 0."""
        plan, order = self._plan, Order.of(self._plan, task, cohort, state)

        def shares(wave: Wave) -> Iterator[Tally]:
            received = clock.waiting(self._shares(order, wave))
            return (read_share(share, plan, task, wave) for share in received)

        timed = None
        if self._timetable is not None:
            start = state.time or 0.0
            timed = self._timetable.arrivals(task.round, cohort, start, state.flights)
        return in_waves(plan, task, cohort, state, shares, timed)

    def serve(self) -> None:
        """Collect for rank 0 until it is done; on every other rank."""
        while (sent := self._told(None)) is not None:
            tensors = self._broadcast(sent.shapes, None)
            self._reply(self._share(sent, tensors))

    def agree(self, tensors: Iterable[Tensor]) -> None:
        """Overwrite tensors by those of rank 0, on every rank; call this before the first round."""
        for t in tensors:
            sent = _host(t)
            dist.broadcast(sent, src=0, group=self._group)
            t.copy_(sent)

    def close(self) -> None:
        """End the work of the other ranks; after an error, ``torchrun`` ends them."""
        if self._midway or self._closed:
            return
        self._closed = True
        if self.rank == 0:
            self._told(None)
        if self._own:
            dist.destroy_process_group()

    def _shares(self, order: Order, wave: Wave) -> Iterator[Share]:
        """Yield this rank's share and those of the others."""
        self._waves, self._midway = self._waves + 1, True
        sealed, tensors = order.share(self._costs.order(wave.clients), wave.limits).sealed()
        sent = _Sent(sealed, self._waves, _shapes(tensors))
        self._told(sent)
        self._broadcast(sent.shapes, tensors)
        own = self._share(sent, tensors)
        if isinstance(own, Failed):
            raise own.error
        self._costs.learn(own.seconds)
        yield own
        for rank in range(1, self._world):
            share = self._received(rank)
            self._costs.learn(share.seconds)
            yield share
        self._midway = False

    def _share(self, sent: _Sent, tensors: Sequence[Tensor]) -> Share | Failed:
        key = f"taken in wave {sent.wave} of {self._nonce}"
        try:
            order = sent.order.opened(tensors, self._plan.codec)
            return collect_share(
                order, self._plan, self._engine, lambda: self._store.add(key, 1) - 1
            )
        except Exception as error:
            return Failed.of(error)

    def _told(self, sent: _Sent | None) -> _Sent | None:
        """Send control words from rank 0 to all; return them."""
        found: _Sent | None = self._from_rank_0(sent)
        return found

    def _from_rank_0(self, value: Any) -> Any:
        """Return rank 0's value on every rank."""
        words = [value]
        dist.broadcast_object_list(words, src=0, group=self._group)
        return words[0]

    def _broadcast(self, shapes: Shapes, tensors: list[Tensor] | None) -> list[Tensor]:
        """Send tensors from rank 0 to all; return them."""
        found = _empty(shapes) if tensors is None else [_host(t) for t in tensors]
        for t in found:
            dist.broadcast(t, src=0, group=self._group)
        return [t.to(self._device) for t in found]

    def _reply(self, share: Share | Failed) -> None:
        """Send a share, or an error, to rank 0."""
        if isinstance(share, Failed):
            dist.send_object_list([share], dst=0, group=self._group)
            return
        named = {name: _shapes(ts) for name, ts in share.tensors.items()}
        dist.send_object_list([(share.header, named, share.seconds)], dst=0, group=self._group)
        for ts in share.tensors.values():
            for t in ts:
                dist.send(_host(t), dst=0, group=self._group)

    def _received(self, rank: int) -> Share:
        words: list[Any] = [None]
        dist.recv_object_list(words, src=rank, group=self._group)
        if isinstance(words[0], Failed):
            raise words[0].raised()
        header, named, seconds = words[0]
        tensors = {name: _empty(shapes) for name, shapes in named.items()}
        for ts in tensors.values():
            for t in ts:
                dist.recv(t, src=rank, group=self._group)
        return Share(header, tensors, seconds)


def _shapes(tensors: Sequence[Tensor]) -> Shapes:
    return [(t.shape, t.dtype) for t in tensors]


def _empty(shapes: Shapes) -> list[Tensor]:
    """Return tensors of these shapes for what another rank sends."""
    return [torch.empty(shape, dtype=dtype) for shape, dtype in shapes]


def _host(t: Tensor) -> Tensor:
    """Return a tensor as it is sent."""
    return t.to(CPU).contiguous()
