"""What is checked of the tally of a share that was collected elsewhere, before it is merged.

Its form is checked when it is read (:mod:`.tally_form`).  Here its content is compared with the
round: every client of the share is accounted for once, weights and counts agree, numbers are
finite, the mean of limited replies is within their limits, and replies that are still held are
measured again.  A sum cannot be taken apart: who collects a share speaks for all its clients.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ..protocol.codecs import MalformedReply
from ..protocol.messages import well_named
from .guard import Limit, Measured
from .mean import Mean
from .plain import Tensors
from .plan import Plan
from .tally import LONGEST, NORM, Tally

__all__ = ["check_share"]

ROUNDING = 1e-9
"""How far a mean of values within a limit may be beyond it, relative to the limit."""


def check_share(
    tally: Tally, plan: Plan, share: Sequence[int], tensors: Tensors, *, calibrated: bool
) -> Tally:
    """Return the tally of a share as it may be merged; raise only :class:`MalformedReply`.

    ``tensors`` are all of the tally's; ``calibrated`` says whether the limits of the round were
    set before the share was collected.
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
    """Every client is accepted, held, failed or rejected: exactly one of these."""
    missing = tally.failures.total() + tally.rejected.total()
    if len(tally.accepted) + len(tally.held) + missing != len(share):
        raise MalformedReply("clients that are not accounted for")
    if tally.unreached > tally.failures.total() or tally.local_seconds > LONGEST * len(share):
        raise MalformedReply("impossible counts in a tally")
    accounts = any(name.startswith("total ") for name in tally.admission.quantities)
    if len(tally.contributed) != (len(tally.accepted) if accounts else 0):
        raise MalformedReply("wrong accounts of a tally")


def _check_limits(tally: Tally, share: Sequence[int]) -> None:
    """A share sets the limits of the first round only if the clients that set them are its own."""
    if tally.admission.limits is None and tally.accepted:
        raise MalformedReply("replies accepted without limits")
    own = set(share)
    first = next((i for i, c in enumerate(tally.cohort) if c not in own), len(tally.cohort))
    needed = min(tally.admission.calibration, len(tally.cohort))
    if tally.admission.limits is not None and first < needed:
        raise MalformedReply("limits that others must set")


def _check_held(tally: Tally) -> None:
    """Measure single replies again: these need not be believed."""
    again: dict[int, Measured] = {}
    for measured in tally.held:
        outcome = tally.admission.measure(measured.reply)
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
    """The weights and counts of limited replies are within the limits, and so are their means."""
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
    """Steps are cut to whole ones, at least one, so only the upper limit holds."""
    limit = limits.get("steps")
    return limit is None or steps <= max(1.0, limit.high) * (1 + ROUNDING)


def _check_metrics(tally: Tally) -> None:
    names = {f"{kind}:{name}" for name in tally.reported for kind in ("metric", "square")}
    found = tally.observed.scalars()
    if found.keys() != names or not all(map(well_named, tally.reported)):
        raise MalformedReply("wrong metrics of a tally")
    if max(tally.reported.values(), default=0) > len(tally.accepted):
        raise MalformedReply("wrong metrics of a tally")
