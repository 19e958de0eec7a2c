"""The root of an aggregation tree: it collects the tallies of its leaves over a grid."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from flwr.app import ArrayRecord, Message, MessageType

from ...protocol.codecs import MalformedReply
from ...protocol.messages import Failure, Rejection, Task
from ...protocol.wire import send
from ...server.collect.check import check_share
from ...server.collect.form import read
from ...server.collect.order import Order
from ...server.collect.tally import Tally
from ...server.collect.waves import Wave, in_waves
from ...server.guard import Accounts
from ...server.guard.contract import up_like
from ...server.plan import Plan
from ...server.record import Clock
from ...server.state import ServerState
from ..attendance import failed
from ..grid import GridEngine
from ..pull import Missing, Unreadable, answers
from ..wire.records import arrived, pack
from .records import order_record, read_tally

__all__ = ["Leaves"]

log = logging.getLogger("fedlada")

LEFT = 0.8
"""A leaf gets this share of the remaining time, so that its tally arrives before the deadline."""


class Leaves:
    """Collects every cohort through the nodes of a grid, each a leaf with several clients."""

    def __init__(self, plan: Plan, engine: GridEngine) -> None:
        self._plan, self._engine = plan, engine

    def collect(self, task: Task, cohort: Sequence[int], state: ServerState, clock: Clock) -> Tally:
        """Send the task to the cohort's leaves and merge their tallies."""
        end, plan = self._engine.end(), self._plan
        self._engine.look_for(cohort)
        vectors = pack(task.parcel or send(task.vectors, task.codecs, "down", seed=0))
        accounts = Accounts(plan.algorithm, state.vectors, state.contributed)
        round = _Round(Order.of(plan, task, cohort, state), vectors, accounts, end)

        def shares(wave: Wave) -> Iterator[Tally]:
            return clock.waiting(self._tallies(round, wave))

        return in_waves(plan, task, cohort, state, shares)

    def _tallies(self, round: _Round, wave: Wave) -> Iterator[Tally]:
        """Yield a tally for each leaf with clients in this wave; it may have failures only."""
        shares: dict[int, list[int]] = {}
        for client in wave.clients:
            shares.setdefault(self._engine.partition(client), []).append(client)
        seconds = None if round.end is None else round.end - time.monotonic()
        messages: dict[int, Message] = {}
        for leaf, share in shares.items():
            node = self._engine.node(share[0])
            if seconds is not None and seconds <= 0:
                yield self._failed(round, wave, share, Missing("deadline", reached=False))
            elif node is None:
                yield self._failed(round, wave, share, Missing("not connected", reached=False))
            else:
                messages[leaf] = self._message(round, wave, share, node, seconds)
        for leaf, message in answers(self._engine.grid, messages, round.end):
            yield self._tally(round, wave, leaf, shares[leaf], message)
            del message

    def _message(
        self, round: _Round, wave: Wave, share: Sequence[int], node: int, seconds: float | None
    ) -> Message:
        record = order_record(
            round.order.share(share, wave.limits),
            self._engine.assignment(round.order.task),
            self._plan,
            round.vectors,
            self._engine.manifest,
            None if seconds is None else LEFT * seconds,
        )
        return self._engine.message(record, node, MessageType.TRAIN, round.order.task.round)

    def _tally(
        self,
        round: _Round,
        wave: Wave,
        leaf: int,
        share: Sequence[int],
        message: Message | Unreadable | Missing,
    ) -> Tally:
        """Return a leaf's tally if it answers this task for this share."""
        if isinstance(message, Missing):
            return self._failed(round, wave, share, message)
        if not isinstance(message, Unreadable) and message.has_error():
            return self._failed(round, wave, share, failed(leaf, message.error))
        self._engine.attendance.note(round.order.task.round, leaf, message)
        if isinstance(message, Unreadable):
            return _rejected(wave, share, "cannot be read", 0)
        plan, task = self._plan, round.order.task
        try:
            sent = read_tally(message.content, self._engine.manifest, len(share))
            if (sent.leaf, sent.round, sent.nonce) != (leaf, task.round, task.nonce):
                raise MalformedReply("reply to another task")
            like = up_like(plan.algorithm, task)
            tally = read(sent.header, sent.tensors, wave.empty(), like=like, share=share)
            return check_share(
                tally,
                plan,
                share,
                sent.tensors,
                calibrated=wave.limits is not None,
                accounts=round.accounts,
                nbytes=sum(vector.nbytes() for vector in like.values()),
            )
        except Exception as error:  # whatever a leaf sends, it may cost its own clients alone
            known = isinstance(error, MalformedReply)
            reason = str(error) if known else f"cannot be judged ({type(error).__name__})"
            log.warning("the tally of leaf %d is not accepted: %s", leaf, reason)
            return _rejected(wave, share, f"leaf: {reason}", arrived(message.content))

    def _failed(
        self, round: _Round, wave: Wave, share: Sequence[int], missing: Missing | Failure
    ) -> Tally:
        """Return a tally in which every client of a share has failed."""
        tally = wave.empty()
        for client in share:
            tally.add(Failure(client=client, reason=missing.reason, reached=missing.reached))
        leaf, cause = self._engine.partition(share[0]), getattr(missing, "cause", "")
        failure = Failure(client=leaf, reason=missing.reason, cause=cause)
        self._engine.attendance.note(round.order.task.round, leaf, failure)
        return tally


class _Round(NamedTuple):
    order: Order
    vectors: ArrayRecord
    accounts: Accounts
    end: float | None


def _rejected(wave: Wave, share: Sequence[int], reason: str, nbytes: int) -> Tally:
    """Return a tally in which every client of a share is rejected; the bytes count once."""
    tally = wave.empty()
    for client in share:
        tally.add(Rejection(client=client, reason=reason, nbytes=nbytes))
        nbytes = 0
    return tally
