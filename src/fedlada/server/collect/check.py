"""Checks the tally of a share that was collected elsewhere, before it is merged.

:mod:`.form` checks its form when it is read.  Here its content is compared with the round: every
client of the share is counted once, weights and counts agree, numbers are finite, the mean of
limited replies is within their limits, accounts add up to what the sum says, and single replies
are measured again.  A sum cannot be split into replies, so a collector is trusted for all of its
clients.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ...algorithms import Vectors
from ...protocol.codecs import MalformedReply
from ...protocol.messages import MOST_METRICS, well_named
from ...protocol.strict import MOST, Tensors
from ..aggregate.held import Held
from ..aggregate.mean import Mean
from ..guard import Accounts, Limit, Measured, judged
from ..guard.limits import DELTA
from ..plan import Plan
from ..private.admission import Private
from .tally import LONGEST, NORM, Tally

__all__ = ["check_share"]

ROUNDING = 1e-9
"""How far a mean of values within a limit may be beyond it, relative to the limit."""

ALONG = 1e-4
"""Rounding error of an inner product in float32, relative to the lengths of both vectors."""

CODED = 2
"""An encoded reply has at most this many times the bytes of its vectors, and ``HEADER`` more."""

HEADER = 2**16

WORDS = {"buffers too low", "metrics not finite"}
"""What the guard notes about replies, beside the names of the quantities that it limits."""


def check_share(
    tally: Tally,
    plan: Plan,
    share: Sequence[int],
    tensors: Tensors,
    *,
    calibrated: bool,
    accounts: Accounts,
    nbytes: int,
) -> Tally:
    """Return the tally of a share if it may be merged; raise :class:`MalformedReply` if not.

    ``tensors`` are all tensors of the tally; ``calibrated`` says whether the limits of the round
    were set before the share was collected.  ``accounts`` are those before the round, and
    ``nbytes`` is the size of the vectors of one reply.
    """
    _check_counts(tally, share)
    _check_notes(tally, most=len(share) * (CODED * nbytes + HEADER))
    guarded = plan.guard is not None or isinstance(tally.admission, Private)
    if guarded and not all(map(_finite, (t for ts in tensors.values() for t in ts))):
        raise MalformedReply("vectors not finite")
    if not calibrated:
        _check_limits(tally, share)
    _check_held(tally)
    if tally.accepted:
        _check_scalars(tally, plan)
        for part in _parts(tally):
            _check_part(tally, part, accounts)
        _check_metrics(tally)
    return tally


def _finite(t: Tensor) -> bool:
    return not t.numel() or math.isfinite(float(torch.linalg.vector_norm(t, math.inf)))


def _check_counts(tally: Tally, share: Sequence[int]) -> None:
    """Check that every client is counted once: as accepted, held, failed or rejected."""
    if tally.counted != len(share):
        raise MalformedReply("clients that are not accounted for")
    if tally.unreached > tally.failures.total() or tally.local_seconds > LONGEST * len(share):
        raise MalformedReply("impossible counts in a tally")
    accounts = any(name.startswith("total ") for name in tally.admission.quantities)
    if len(tally.contributed) != (len(tally.accepted) if accounts else 0):
        raise MalformedReply("wrong accounts of a tally")


def _check_notes(tally: Tally, *, most: int) -> None:
    """Check that what is only recorded is what a guard can note about this many replies."""
    quantities = tally.admission.quantities
    words = {name.partition("[")[0] for name in quantities} | (WORDS if quantities else set())
    known = tally.limited.keys() <= words
    if not known or max(tally.limited.values(), default=0) > len(tally.accepted):
        raise MalformedReply("impossible counts in a tally")
    if tally.bytes_up > most:
        raise MalformedReply("impossible counts in a tally")


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
    if isinstance(tally.admission, Private):
        whole = isinstance(tally.total, Mean) and tally.total.weight == count
        if not whole or tally.observed.weight != count:
            raise MalformedReply("wrong weights of a tally")
        if means.keys() != tally.admission.bits or not all(0 <= b <= 1 for b in means.values()):
            raise MalformedReply("impossible counts in a tally")
        return
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
    if weight > count * MOST or not _within(float(weight / count), limits, "examples"):
        raise MalformedReply("wrong weights of a tally")


class _Part(NamedTuple):
    """The mean of the replies of some clients; of one client if replies are not summed up."""

    clients: Sequence[int]
    mean: Vectors
    scalars: Mapping[str, float]


def _parts(tally: Tally) -> Iterator[_Part]:
    """Yield the smallest parts of a tally that can be measured."""
    total = tally.total
    if isinstance(total, Mean):
        yield _Part(tally.accepted, total.vectors(), total.scalars())
    elif isinstance(total, Held):
        for client, (vectors, scalars) in zip(tally.accepted, total.replies(), strict=True):
            yield _Part([client], vectors, scalars)


def _check_part(tally: Tally, part: _Part, accounts: Accounts) -> None:
    """Check that limited replies can have this mean, and that it is in their accounts."""
    count, limits = len(part.clients), tally.admission.limits or {}
    lr_sum, square = (part.scalars.get(name, math.nan) for name in ("lr_sum", NORM))
    if not _within(lr_sum, limits, "lr_sum"):
        raise MalformedReply("counts beyond their limits")
    beyond = tally.admission.impossible(part.mean, lr_sum, count, square)
    if beyond is not None:
        raise MalformedReply(f"{beyond} beyond its limit")
    if accounts.up is None or not tally.contributed:
        return
    changes = []
    for client in part.clients:
        before, after = accounts.after(client, 0.0), tally.contributed[client]
        limit = limits.get(accounts.name)
        most = math.inf if limit is None else max(abs(before), limit.high)
        if abs(after) > most * (1 + ROUNDING):
            raise MalformedReply(f"{accounts.name} beyond its limit")
        changes.append(after - before)
    # Each reply's inner product was rounded, in proportion to the reply's own length.
    longest = max(part.mean[accounts.up].norm(), math.sqrt(square) if accounts.up == DELTA else 0)
    limit = limits.get(accounts.up)
    longest = max(longest, 0.0 if limit is None else limit.high)
    eps = max(torch.finfo(t.dtype).eps for t in part.mean[accounts.up])
    rounding = max(ALONG, 8 * eps) * longest
    if not abs(math.fsum(changes) / count - accounts.along(part.mean)) <= rounding:
        raise MalformedReply("wrong accounts of a tally")


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
    most = len(tally.accepted)
    if (
        max(tally.reported.values(), default=0) > most
        or tally.reported.total() > most * MOST_METRICS
    ):
        raise MalformedReply("wrong metrics of a tally")
