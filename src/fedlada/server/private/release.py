r"""The release of a private round: the noised mean, the new clips, and what may be on record.

.. math::
    \text{released}_k = \text{known}_k + \frac{C_k}{\text{cohort}}
        \Bigl(\sum_i u_{i,k} + \frac{z}{\sqrt{s_k}}\,\mathcal N(0, I)\Bigr)

with :math:`u_{i,k}` the clipped news of client i in units of the clip, so at most 1 long, and
``cohort`` a constant of the plan: missing replies count as zero.  Sums and noise are whole
multiples of the codec's step, so no last bits of rounded sums speak (Mironov, 2012).  Whatever the
algorithm makes of the released mean is as private as that.

Nothing that follows from who was drawn is on record, not even how many: given the size of a
cohort, a client is in it with another chance than the sampling rate, and epsilon counts on that.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from typing import cast

import torch
from torch import Tensor

from ...algorithms import Round, Vector, Vectors
from ...algorithms.vectors import is_small
from ...errors import require
from ...privacy import Privacy
from ...privacy.account import Event, composed
from ...privacy.news import BELOW, known_of, nominal, roots_of
from ...privacy.noise import Source, normal
from ...protocol.codecs.fixed import STEP
from ...protocol.messages import Clips, Task
from ..aggregate.mean import Mean
from ..collect.tally import Tally
from ..plan import Plan
from ..record import RoundRecord
from ..sampling import Bernoulli
from ..state import ServerState
from .account import Account

__all__ = ["CLOSED", "allowed", "published", "release", "released_at_all"]


def _begin(plan: Plan, state: ServerState, clients: int) -> None:
    """Fix the number of clients and the first clips, and check what depends on them."""
    privacy, algorithm = _privacy(plan), plan.algorithm
    if state.account is None:  # a run without a directory
        state.account = Account(seed=plan.seed if privacy.seeded else None)
    require(
        state.enrolled in (0, clients),
        f"there are {clients} clients, and the run began with {state.enrolled}; what sums are"
        " divided by must stay as it was: bring the same number back, or start a new run",
    )
    state.enrolled = clients
    state.clips = state.clips or privacy.clips(algorithm)
    require(
        privacy.seeded or privacy.delta < 1 / clients,
        f"delta is {privacy.delta:g}, and there are {clients} clients: with so large a delta a"
        f" program may publish one of them; choose less than 1/{clients}",
    )
    drawn, masks = _rate(plan) * clients, plan.masks
    require(
        masks is None or drawn >= masks.least,
        f"a round has about {drawn:.3g} of {clients} clients, and masks open no group below"
        f" {masks.least if masks else 0}: give a larger cohort, or masks with a smaller least",
    )
    privacy.noises(len(algorithm.up), _expected(plan, state))
    whole = [m.up for m in algorithm.moments if not is_small(m.up)]
    if whole and not state.round:
        warnings.warn(
            f"{', '.join(whole)} has as many numbers as the model, and noise on it grows with"
            " their root; fedlada-rows sends few of them, and the local rule adam-unshared sends"
            " none",
            stacklevel=4,
        )


def allowed(plan: Plan, state: ServerState, clients: int) -> bool:
    """Return whether the budget allows one more round; warn if it does not.

    A run without privacy has no budget.
    """
    if plan.privacy is None:
        return True
    _begin(plan, state, clients)
    privacy, account = plan.privacy, _account(state)
    event, rounds = _event(plan), plan.rounds - state.round
    if account.allows(event, privacy.epsilon, privacy.delta, rounds):
        return True
    require(
        account.releases > 0,
        f"one round has epsilon {composed({event: 1}, privacy.delta):.3g} with noise"
        f" {privacy.noise:g}, and the budget is {privacy.epsilon:g}; fedlada privacy says which"
        " noise it needs",
    )
    warnings.warn(
        f"the run ends after {state.round} of {plan.rounds} rounds: one more would exceed its"
        f" budget of epsilon {privacy.epsilon:g}, of which"
        f" {account.epsilon(privacy.delta):.3g} is spent. More noise lets a new run go further",
        stacklevel=3,
    )
    return False


CLOSED = "too few for masks"
"""Why the reply of a client is not used whose group was not opened."""


def released_at_all(tally: Tally) -> bool:
    """Return whether a round is released: not if all of its clients failed.

    Who answers says nothing about data.  A cohort without any client is released as noise alone,
    and so is one with too few clients for masks: nobody may know how many were drawn.
    """
    return bool(tally.accepted) or not tally.cohort or CLOSED in tally.failures


def release(plan: Plan, state: ServerState, tally: Tally, clients: int) -> tuple[Vectors, Round]:
    """Pay for the round, and return the noised mean and the scalars that everybody may know."""
    privacy, algorithm, account = _privacy(plan), plan.algorithm, _account(state)
    account.spend(_event(plan), state.round, state.clips)
    source, expected = account.source("noise", state.round), _expected(plan, state)
    shares = privacy.shares_of(algorithm)
    noise, counting = privacy.noises(len(algorithm.up), expected)
    lr = algorithm.lr(state.round, decay=plan.lr_decay)
    assumed = nominal(algorithm, privacy.steps, lr)
    known, roots = known_of(algorithm, state.vectors, assumed), roots_of(algorithm)
    sums, mean = cast(Mean, tally.total).sums(), Vectors()
    for name in algorithm.up:
        like = state.vectors[roots[name]] if name in roots else state.vectors.x
        unit, size = state.clips[name] / expected, noise / math.sqrt(shares[name])
        mean[name] = _noised(like, sums.get(name), known.get(name), unit, size, source)
        if name in roots:  # a root below the size of the noise says nothing, and divides steps
            floor = mean[name].clamp_min(size * unit)
            mean[name] = floor * floor
    mean = Vectors((name, _typed(vector, state, roots.get(name))) for name, vector in mean.items())
    bits, count = _bits(tally), len(tally.accepted)
    for name in algorithm.up:
        noisy = bits.get(name, 0.0) - count / 2
        if counting:
            noisy += counting * float(normal(torch.zeros(1, dtype=torch.float64), source))
        state.clips[name] = privacy.next_clip(state.clips[name], 0.5 + noisy / expected)
    r = Round(
        steps=assumed.steps,
        lr_sum=assumed.lr_sum,
        accepted=expected,
        clients=clients,
        updates=state.updates,
        delta_square=math.nan,
    )
    return mean, r


def published(plan: Plan, state: ServerState, task: Task, record: RoundRecord) -> RoundRecord:
    """Return the part of a record that everybody may know: without privacy, all of it."""
    if plan.privacy is None:
        return record
    privacy, clips = plan.privacy, cast(Clips, task.clips)
    expected = round(_expected(plan, state))
    sent = sum(4 * _like(state, plan, name).numel() for name in plan.algorithm.up)
    return RoundRecord(
        round=record.round,
        lr=record.lr,
        cohort=(),
        accepted=None,
        applied=record.applied,
        steps=float(privacy.steps),
        bytes_down=expected * task.nbytes,
        bytes_up=expected * sent,
        seconds=0.0,
        local_seconds=0.0,
        server_seconds=0.0,
        metrics=record.metrics,
        epsilon=_account(state).epsilon(privacy.delta),
        delta=privacy.delta,
        noise=privacy.noise,
        clips=dict(clips.lengths),
        seeded=privacy.seeded,
    )


def _noised(
    like: Vector,
    total: Vector | None,
    known: Vector | None,
    unit: float,
    size: float,
    source: Source,
) -> Vector:
    """Return a noised sum in float64, in its own unit, and what is known added to it."""

    def noised(i: int, t: Tensor) -> Tensor:
        part = torch.zeros_like(t, dtype=torch.float64) if total is None else total.tensors[i]
        if size:
            part = part + torch.round(normal(part, source) * (size / STEP)) * STEP
        part = part * unit
        return part if known is None else part + known.tensors[i]

    return Vector(noised(i, t) for i, t in enumerate(like))


def _typed(vector: Vector, state: ServerState, of: str | None) -> Vector:
    """Return a vector in the type and the memory layout of the server's."""
    like = state.vectors[of] if of else state.vectors.x
    return Vector(torch.empty_like(u).copy_(t) for t, u in zip(vector, like, strict=True))


def _like(state: ServerState, plan: Plan, name: str) -> Vector:
    of = roots_of(plan.algorithm).get(name)
    return state.vectors[of] if of else state.vectors.x


def _bits(tally: Tally) -> Mapping[str, float]:
    """Return how many clients were below the clip, by vector."""
    if not tally.accepted:
        return {}
    count = len(tally.accepted)
    means = tally.total.scalars().items()
    return {n.removeprefix(BELOW): round(v * count) for n, v in means if n.startswith(BELOW)}


def _privacy(plan: Plan) -> Privacy:
    assert plan.privacy is not None
    return plan.privacy


def _account(state: ServerState) -> Account:
    assert state.account is not None
    return state.account


def _rate(plan: Plan) -> float:
    assert isinstance(plan.cohort, Bernoulli)
    return plan.cohort.rate


def _event(plan: Plan) -> Event:
    return Event(_rate(plan), _privacy(plan).noise)


def _expected(plan: Plan, state: ServerState) -> float:
    """Return what sums are divided by, the same in all rounds."""
    return _privacy(plan).expected(_rate(plan), state.enrolled)
