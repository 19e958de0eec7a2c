"""Collecting under masks: four exchanges with a cohort, after which its groups' sums are opened.

Clients give keys, then shares for the others of their group, then the masked reply, and then the
shares with which the server opens the sum (:mod:`fedlada.privacy.masking`).  A sum that was opened
is a share of the cohort's tally like that of a leaf, and is checked like one: the sum of n clients
is at most n clips long.  A group below the threshold stays closed, and its replies count as
failures.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ...algorithms import Vectors
from ...errors import require
from ...privacy.news import BELOW
from ...protocol.codecs import MalformedReply
from ...protocol.codecs.fixed import STEP
from ...protocol.engine import Engine, MaskedEngine
from ...protocol.messages import Failure, Rejection, Task
from ..aggregate.exact_scalars import ExactMeans
from ..aggregate.exact_sum import HIGH
from ..aggregate.mean import Mean
from ..guard import Accounts
from ..guard.contract import Contract, up_like
from ..plan import Plan
from ..private.release import CLOSED
from ..record import Clock
from ..state import ServerState
from .check import check_share
from .collect import new_tally
from .tally import Tally

if TYPE_CHECKING:
    from ...privacy.masking import Group

__all__ = ["Masked"]


class Masked:
    """Collects in this process the sums of groups, through an engine whose clients have masks."""

    def __init__(self, plan: Plan, engine: Engine) -> None:
        require(
            isinstance(engine, MaskedEngine),
            "there are masks, and this engine has no ask(), by which its clients would exchange"
            " keys; leave masks out, or run fedlada.simulate without an engine",
        )
        assert isinstance(engine, MaskedEngine)
        self._plan, self._engine = plan, engine

    def collect(self, task: Task, cohort: Sequence[int], state: ServerState, clock: Clock) -> Tally:
        """Return the tally of the cohort: the sum of each group that was opened."""
        return _Round(self._plan, self._engine, task, cohort, state, clock).collect()


class _Round:
    """The groups of one round, from their keys to their sums."""

    def __init__(
        self,
        plan: Plan,
        engine: MaskedEngine,
        task: Task,
        cohort: Sequence[int],
        state: ServerState,
        clock: Clock,
    ) -> None:
        self._plan, self._engine, self._task, self._cohort = plan, engine, task, cohort
        self._state, self._clock = state, clock
        self._tally = new_tally(plan, task, cohort, state)
        self._counted, self._nbytes = set[int](), dict[int, int]()
        self._like = up_like(plan.algorithm, task)

    def collect(self) -> Tally:
        of = {client: group for group in self._groups() for client in group.clients}
        groups = list(dict.fromkeys(of.values()))
        self._ask(
            "shares", {c: of[c].ask_shares(c) for c in of}, lambda c, m: of[c].take_shares(c, m)
        )
        sealed = {client: group.sealed(client) for group in groups for client in group.ready}
        self._receive(replace(self._task, sealed=sealed), of)
        asked = {client: group.ask_unmask() for group in groups for client in group.left}
        self._ask("unmask", asked, lambda c, m: of[c].take_unmask(c, m), counts=False)
        for group in groups:
            self._open(group)
        for client in self._cohort:
            self._fail(Failure(client=client, reason=CLOSED))
        return self._tally

    def _groups(self) -> list[Group]:
        """Ask all clients for keys and return the groups of those that gave some."""
        from ...privacy.masking import Group, checked_keys, context_of

        masks, keys, seen = self._plan.masks, dict[int, bytes](), set[bytes]()
        assert masks is not None
        assert self._state.account is not None

        def take(client: int, message: bytes) -> None:
            keys[client] = checked_keys(message, seen)

        if len(self._cohort) >= masks.least:
            self._ask("keys", dict.fromkeys(self._cohort, b""), take)
        # Places in a group say nothing of a client's number.
        drawn = self._state.account.source("groups", self._task.round)
        order = random.Random(drawn(32)).sample(sorted(keys), len(keys))
        made = masks.groups(order)
        return [Group(context_of(self._task), {c: keys[c] for c in each}) for each in made]

    def _ask(
        self,
        step: str,
        messages: Mapping[int, bytes],
        take: Callable[[int, bytes], None],
        *,
        counts: bool = True,
    ) -> None:
        """Ask clients and take their answers; one that gives none has failed, if that ``counts``.

        A client whose masked reply has arrived stays in the sum, whatever it answers.
        """
        answered = set[int]()
        for answer in self._clock.waiting(self._engine.ask(self._task, step, messages)):
            if isinstance(answer, Failure):
                failure = answer
            elif answer.client not in messages or answer.client in answered:
                continue
            else:
                answered.add(answer.client)
                try:
                    take(answer.client, answer.message)
                    continue
                except MalformedReply as wrong:
                    failure = Rejection(client=answer.client, reason=str(wrong))
            if counts:
                self._fail(failure)

    def _receive(self, task: Task, of: Mapping[int, Group]) -> None:
        """Have the clients train, and add their masked replies to the sums of their groups."""
        from ...privacy.masked import whole_of

        assert task.sealed is not None
        contract = Contract(self._plan.algorithm, task, task.sealed)
        contract.like = {
            name: vector.each(lambda t: torch.empty_like(t, dtype=torch.int32, device="meta"))
            for name, vector in self._like.items()
        }
        for reply in self._clock.waiting(self._engine.exchange(task, list(task.sealed))):
            if isinstance(reply, Failure):
                self._fail(reply)
                continue
            reason = contract.breach(reply)
            if reason is None:
                try:
                    of[reply.client].add(reply.client, whole_of(reply))
                    self._nbytes[reply.client] = reply.nbytes
                    continue
                except MalformedReply as wrong:
                    reason = str(wrong)
            if reply.client not in self._nbytes:  # a second reply does not undo the first
                self._fail(Rejection(client=reply.client, reason=reason, nbytes=reply.nbytes))

    def _open(self, group: Group) -> None:
        """Open the sum of a group and add it to the tally, or count its replies as failures."""
        from ...privacy.masking import TooFew

        try:
            share = self._share(group.arrived, group.opened())
        except TooFew:
            return
        except MalformedReply as wrong:
            for client in group.arrived:
                self._fail(Rejection(client=client, reason=str(wrong)))
            return
        self._counted |= {*group.arrived}
        self._tally.merge(share)

    def _share(self, clients: Sequence[int], total: Tensor) -> Tally:
        """Return a tally with the sum of these clients, as if each had been added by itself."""
        from ...privacy.masked import parts_of

        share, count = new_tally(self._plan, self._task, self._cohort, self._state), len(clients)
        parts, scalars = parts_of(total, self._like), ExactMeans()
        ones = dict(zip(sorted(self._like), parts.pop(BELOW).tolist(), strict=True))
        if not all(0 <= below <= count for below in ones.values()):
            raise MalformedReply("impossible counts in a tally")
        for i in range(count):
            bits = {BELOW + name: float(i < below) for name, below in ones.items()}
            scalars.fold(bits, 1)
            share.observed.fold(Vectors(), weight=1)
        tensors = {f"{HIGH}:{name}": [part.double().mul_(STEP)] for name, part in parts.items()}
        header = {"count": count, "scalars": scalars.written()}
        assert isinstance(share.total, Mean)
        share.total.read(header, tensors, self._like, most=count)
        share.accepted = list(clients)
        share.bytes_up = sum(self._nbytes[client] for client in clients)
        none = Accounts(self._plan.algorithm, self._state.vectors, {})
        most = self._state.vectors.nbytes()
        return check_share(
            share, self._plan, clients, tensors, calibrated=True, accounts=none, nbytes=most
        )

    def _fail(self, failure: Failure) -> None:
        """Count the failure of a client of the cohort, once."""
        if failure.client in self._cohort and failure.client not in self._counted:
            self._counted.add(failure.client)
            self._tally.add(failure)
