"""The root of an aggregation tree: it collects the tallies of its leaves over a grid."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from flwr.app import ArrayRecord, Message, MessageType

from ..protocol.codecs import MalformedReply
from ..protocol.engine import Engine
from ..protocol.messages import Failure, Rejection, Task
from ..protocol.wire import send
from ..server.guard.contract import up_like
from ..server.plan import Plan
from ..server.record import Clock
from ..server.share_check import check_share
from ..server.state import ServerState
from ..server.tally import Tally
from ..server.tally_form import read
from ..server.waves import Wave, in_waves
from .grid import GridEngine
from .leaf_records import Order, order_record, read_tally
from .pull import Missing, Unreadable, answers
from .records import arrived, pack

__all__ = ["Leaves"]

log = logging.getLogger("fedlada")

LEFT = 0.8
"""A leaf is given this share of the time that is left, so that its tally arrives in time."""


class Leaves:
    """Collects every cohort through the nodes of a grid, each a leaf with clients of its own."""

    def __init__(self, engine: GridEngine) -> None:
        self._engine = engine

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
        """Send the task to the cohort's leaves and merge their tallies, as one collector would."""
        end, clock = self._engine.end(), clock or Clock()
        self._engine.look_for(cohort)
        vectors = pack(task.parcel or send(task.vectors, task.codecs, "down", seed=0))
        round = _Round(plan, task, cohort, state, vectors, end)

        def shares(wave: Wave) -> Iterator[Tally]:
            return clock.waiting(self._tallies(round, wave))

        return in_waves(plan, task, cohort, state, shares)

    def _tallies(self, round: _Round, wave: Wave) -> Iterator[Tally]:
        """Yield a tally for each leaf with clients in this wave, of failures if need be."""
        shares: dict[int, list[int]] = {}
        for client in wave.clients:
            shares.setdefault(self._engine.partition(client), []).append(client)
        seconds = None if round.end is None else round.end - time.monotonic()
        messages: dict[int, Message] = {}
        for leaf, share in shares.items():
            node = self._engine.node(share[0])
            if seconds is not None and seconds <= 0:
                yield _failed(wave, share, Missing("deadline", reached=False))
            elif node is None:
                yield _failed(wave, share, Missing("not connected", reached=False))
            else:
                messages[leaf] = self._message(round, wave, share, node, seconds)
        for leaf, message in answers(self._engine.grid, messages, round.end):
            yield self._tally(round, wave, leaf, shares[leaf], message)
            del message

    def _message(
        self, round: _Round, wave: Wave, share: Sequence[int], node: int, seconds: float | None
    ) -> Message:
        order = Order(
            assignment=self._engine.assignment(round.task),
            plan=round.plan,
            cohort=round.cohort,
            share=share,
            state=round.state,
            limits=wave.limits,
            seconds=None if seconds is None else LEFT * seconds,
        )
        record = order_record(order, round.vectors, self._engine.manifest)
        return self._engine.message(record, node, MessageType.TRAIN, round.task.round)

    def _tally(
        self,
        round: _Round,
        wave: Wave,
        leaf: int,
        share: Sequence[int],
        message: Message | Unreadable | Missing,
    ) -> Tally:
        """Return a leaf's tally if it is one of this task and this share."""
        if isinstance(message, Missing):
            return _failed(wave, share, message)
        if isinstance(message, Unreadable):
            return _rejected(wave, share, "cannot be read", 0)
        if message.has_error():
            return _failed(wave, share, Missing(f"Flower error {message.error.code}"))
        plan, task = round.plan, round.task
        try:
            sent = read_tally(message.content, self._engine.manifest, len(share))
            if (sent.leaf, sent.round, sent.nonce) != (leaf, task.round, task.nonce):
                raise MalformedReply("reply to another task")
            like = up_like(plan.algorithm, task)
            tally = read(sent.header, sent.tensors, wave.empty(), like=like, share=share)
            calibrated = wave.limits is not None
            return check_share(tally, plan, share, sent.tensors, calibrated=calibrated)
        except MalformedReply as error:
            log.warning("the tally of leaf %d is not accepted: %s", leaf, error)
            return _rejected(wave, share, f"leaf: {error}", arrived(message.content))


class _Round(NamedTuple):
    plan: Plan
    task: Task
    cohort: Sequence[int]
    state: ServerState
    vectors: ArrayRecord
    end: float | None


def _failed(wave: Wave, share: Sequence[int], missing: Missing) -> Tally:
    """Return a tally in which every client of a share has failed."""
    tally = wave.empty()
    for client in share:
        tally.add(Failure(client=client, reason=missing.reason, reached=missing.reached))
    return tally


def _rejected(wave: Wave, share: Sequence[int], reason: str, nbytes: int) -> Tally:
    """Return a tally in which every client of a share is rejected; the bytes count once."""
    tally = wave.empty()
    for client in share:
        tally.add(Rejection(client=client, reason=reason, nbytes=nbytes))
        nbytes = 0
    return tally
