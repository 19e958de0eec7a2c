"""Checks the tally of a share that was collected elsewhere, before it is merged.

:mod:`.form` checks its form when it is read.  Here its content is compared with the round: every
client of the share is counted once, weights and counts agree, numbers are finite, the mean of
limited replies is within their limits, and held replies are measured again.  A sum cannot be split
into replies, so a collector is trusted for all of its clients.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ...protocol.codecs import MalformedReply
from ...protocol.messages import well_named
from ...protocol.strict import Tensors
from ..aggregate.mean import Mean
from ..guard import Limit, Measured, judged
from ..plan import Plan
from .tally import LONGEST, NORM, Tally

__all__ = ["check_share"]

ROUNDING = 1e-9
"""How far a mean of values within a limit may be beyond it, relative to the limit."""


def check_share(
    tally: Tally, plan: Plan, share: Sequence[int], tensors: Tensors, *, calibrated: bool
) -> Tally:
    """Return the tally of a share if it may be merged; raise only :class:`MalformedReply`.

    ``tensors`` are all tensors of the tally; ``calibrated`` says whether the limits of the round
    were set before the share was collected.
    """
    _check_counts(tally, share)
    if plan.guard is not None and not all(map(_finite, (t for ts in tensors.values() for t in ts))):
        raise MalformedReply("vectors not finite")
    if not calibrated:
        _check_limits(tally, share)
    _check_held(tally)
    if tally.accepted:
        _check_scalars(tally, plan)
        _check_metrics(tally)
    return tally


def _finite(t: Tensor) -> bool:
    return not t.numel() or math.isfinite(float(torch.linalg.vector_norm(t, math.inf)))


def _check_counts(tally: Tally, share: Sequence[int]) -> None:
    """Check that every client is counted once: as accepted, held, failed or rejected."""
    missing = tally.failures.total() + tally.rejected.total()
    if len(tally.accepted) + len(tally.held) + missing != len(share):
        raise MalformedReply("clients that are not accounted for")
    if tally.unreached > tally.failures.total() or tally.local_seconds > LONGEST * len(share):
        raise MalformedReply("impossible counts in a tally")
    accounts = any(name.startswith("total ") for name in tally.admission.quantities)
    if len(tally.contributed) != (len(tally.accepted) if accounts else 0):
        raise MalformedReply("wrong accounts of a tally")


def _check_limits(tally: Tally, share: Sequence[int]) -> None:
    """Check that a share sets limits only if it has all of the clients that set them."""
    if tally.admission.limits is None and tally.accepted:
        raise MalformedReply("replies accepted without limits")
    clients = set(share)
    first = next((i for i, c in enumerate(tally.cohort) if c not in clients), len(tally.cohort))
    needed = min(tally.admission.calibration, len(tally.cohort))
    if tally.admission.limits is not None and first < needed:
        raise MalformedReply("limits that others must set")


def _check_held(tally: Tally) -> None:
    """Measure held replies again instead of trusting the collector's measurements."""
    again: dict[int, Measured] = {}
    for measured in tally.held:
        outcome = judged(tally.admission.measure, measured.reply, measured.reply)
        if not isinstance(outcome, Measured):
            raise MalformedReply(outcome.reason)
        if not all(map(well_named, measured.reply.metrics)):
            raise MalformedReply("wrong name of a metric")
        again[measured.reply.client] = outcome
    tally.held = [again[measured.reply.client] for measured in tally.held]
    tally.usable = {c: again[c] if m is not None else None for c, m in tally.usable.items()}
    if tally.held and not tally.accepted:
        tally.seen = {}
        for outcome in tally.held:
            for name, size in outcome.sizes.items():
                tally.seen.setdefault(name, []).append(size)


def _check_scalars(tally: Tally, plan: Plan) -> None:
    """Check that the means of weights and counts are within the limits of single replies."""
    means, count = tally.total.scalars(), len(tally.accepted)
    limits = tally.admission.limits or {}
    if means.keys() != {"steps", "lr_sum", NORM}:
        raise MalformedReply("impossible counts in a tally")
    if not all(0 < means[name] < math.inf for name in ("steps", "lr_sum")):
        raise MalformedReply("impossible counts in a tally")
    if not _within(means["lr_sum"], limits, "lr_sum") or not _below(means["steps"], limits):
        raise MalformedReply("counts beyond their limits")
    if not isinstance(tally.total, Mean):
        return
    weight = tally.total.weight
    if tally.observed.weight != weight or (plan.weighting == "uniform" and weight != count):
        raise MalformedReply("wrong weights of a tally")
    if not _within(float(weight / count), limits, "examples"):
        raise MalformedReply("wrong weights of a tally")
    mean = tally.total.vectors()
    beyond = tally.admission.impossible(mean, means["lr_sum"], count, means[NORM])
    if beyond is not None:
        raise MalformedReply(f"{beyond} beyond its limit")


def _within(value: float, limits: Mapping[str, Limit], name: str) -> bool:
    limit = limits.get(name)
    if limit is None:
        return True
    return limit.low * (1 - ROUNDING) <= value <= limit.high * (1 + ROUNDING)


def _below(steps: float, limits: Mapping[str, Limit]) -> bool:
    """Return whether steps are below their upper limit; rounding may put them below the lower."""
    limit = limits.get("steps")
    return limit is None or steps <= max(1.0, limit.high) * (1 + ROUNDING)


def _check_metrics(tally: Tally) -> None:
    names = {f"{kind}:{name}" for name in tally.reported for kind in ("metric", "square")}
    observed = tally.observed.scalars()
    if observed.keys() != names or not all(map(well_named, tally.reported)):
        raise MalformedReply("wrong metrics of a tally")
    if max(tally.reported.values(), default=0) > len(tally.accepted):
        raise MalformedReply("wrong metrics of a tally")
