"""A tally as plain values and tensors, so that it can cross to another process or machine.

The form has everything that merging needs.  The reader trusts nothing: it compares names, types,
shapes and counts with what the round allows.  It allocates nothing beyond the tensors it is given,
so a malicious sender cannot exhaust its memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import fields
from typing import Any

from torch import Tensor

from ...algorithms import Vector, Vectors
from ...errors import require
from ...protocol.codecs import MalformedReply
from ...protocol.messages import Reply
from ...protocol.strict import Tensors, alike, counts, integer, items, number, table, text
from ..aggregate.mean import Mean
from ..guard import Limit, Measured
from ..guard.limits import COUNTS
from .tally import Aggregator, Tally

__all__ = ["read", "written"]

COUNTERS = ("failures", "rejected", "limited", "reported")
KEYS = {
    *COUNTERS,
    *("accepted", "contributed", "seen", "unreached", "bytes_up", "local_seconds"),
    *("total", "observed", "limits", "held", "usable", "incidents"),
}
PLAIN = tuple(f.name for f in fields(Reply) if f.name != "vectors")
"""The fields of a reply that are plain values."""


def written(tally: Tally) -> tuple[dict[str, Any], dict[str, list[Tensor]]]:
    """Return a tally as values for JSON, and its tensors by name without copying them."""
    total, tensors = _form(tally.total, "written")()
    header = {
        **{name: dict(getattr(tally, name)) for name in COUNTERS},
        "accepted": tally.accepted,
        "contributed": [[*pair] for pair in tally.contributed.items()],
        "seen": tally.seen,
        "unreached": tally.unreached,
        "bytes_up": tally.bytes_up,
        "local_seconds": float(tally.local_seconds),
        "total": total,
        "observed": tally.observed.written()[0],
        "limits": _written_limits(tally.admission.limits),
        "held": [_written_held(measured) for measured in tally.held],
        "usable": _written_usable(tally),
        "incidents": [[client, reasons] for client, reasons in tally.incidents.items()],
    }
    named = {f"total/{name}": ts for name, ts in tensors.items()}
    if tally.late is not None:
        whole, tensors = tally.whole.written()
        header["late"] = {"whole": whole, **tally.late.written()}
        named |= {f"whole/{name}": ts for name, ts in tensors.items()}
    for i, measured in enumerate(tally.held):
        named |= {f"held/{i}/{name}": v.tensors for name, v in measured.reply.vectors.items()}
    return header, named


def read(
    header: object,
    tensors: Tensors,
    empty: Tally,
    *,
    like: Mapping[str, Vector],
    share: Collection[int],
) -> Tally:
    """Fill an empty tally of the same round with the written tally of a share of its cohort.

    ``like`` has a vector with the right types and shapes for each ``up`` vector.  The tensors are
    not copied, and only read.  Raises only :class:`MalformedReply`.
    """
    late = {} if empty.late is None else {"late"}
    values, tally, most = table(header, {*KEYS, *late}), empty, len(share)
    tally.accepted = _clients(values["accepted"], share)
    for name in COUNTERS:
        setattr(tally, name, Counter(counts(values[name])))
    tally.unreached = integer(values["unreached"])
    tally.bytes_up = integer(values["bytes_up"])
    tally.local_seconds = number(values["local_seconds"])
    tally.contributed = _contributed(values["contributed"], tally.accepted)
    held, totals = items(values["held"], most=most), _under("total/", tensors)
    wholes = _under("whole/", tensors)
    # Every tensor must belong to the sums or to a held reply: nothing is read and then ignored.
    if len(totals) + len(wholes) + len(held) * len(like) != len(tensors):
        raise MalformedReply("wrong vectors of a tally")
    averaged = {name: vector for name, vector in like.items() if name not in tally.summed}
    _form(tally.total, "read")(values["total"], totals, averaged, most=most)
    if tally.late is not None:
        tally.late.read(values["late"])
        summed = {name: like[name] for name in tally.summed}
        tally.whole.read(values["late"]["whole"], wholes, summed, most=most)
    observed = Mean()
    observed.read(values["observed"], {}, {}, most=most)
    tally.observed = observed
    if {tally.total.count, observed.count} != {len(tally.accepted)}:
        raise MalformedReply("impossible counts in a tally")
    tally.held = [
        _held(value, _under(f"held/{i}/", tensors), empty, like) for i, value in enumerate(held)
    ]
    # No client can be both held and accepted: it would be counted twice.
    answered = _clients([m.reply.client for m in tally.held] + tally.accepted, share)
    tally.usable = _usable(values["usable"], tally.held, share)
    tally.incidents = _incidents(values["incidents"], share)
    tally.seen = _seen(values["seen"], empty, len(answered), most)
    _read_limits(values["limits"], empty)
    return tally


def _form(total: Aggregator, name: str) -> Callable[..., Any]:
    """Return a method of the aggregator that writes or reads its state."""
    method: Callable[..., Any] | None = getattr(total, name, None)
    require(
        method is not None,
        f"{type(total).__name__} has no {name}(), so several collectors cannot share a cohort; use"
        " one collector, or aggregator='mean'",
    )
    assert method is not None
    return method


def _under(prefix: str, tensors: Tensors) -> Tensors:
    return {k.removeprefix(prefix): ts for k, ts in tensors.items() if k.startswith(prefix)}


def _clients(value: object, share: Collection[int]) -> list[int]:
    """Return client numbers of which each is in the share and none occurs twice."""
    clients = [integer(client) for client in items(value, most=len(share))]
    if len(set(clients)) < len(clients) or not set(clients) <= set(share):
        raise MalformedReply("wrong clients of a tally")
    return clients


def _contributed(value: object, accepted: Collection[int]) -> dict[int, float]:
    pairs = [items(pair, least=2, most=2) for pair in items(value, most=len(accepted))]
    accounts = {integer(client): number(account) for client, account in pairs}
    _clients([*accounts], accepted)
    return accounts


def _incidents(value: object, share: Collection[int]) -> dict[int, list[str]]:
    pairs = [items(pair, least=2, most=2) for pair in items(value, most=len(share))]
    clients = _clients([client for client, _ in pairs], share)
    reasons = ([text(reason) for reason in items(each)] for _, each in pairs)
    return dict(zip(clients, reasons, strict=True))


def _seen(value: object, empty: Tally, least: int, most: int) -> dict[str, list[float]]:
    """Return the sizes of every quantity, one for each of the same replies."""
    lists = table(value, empty.admission.quantities if value or least else ())
    seen = {name: [_seen_size(name, s) for s in items(lists[name], most=most)] for name in lists}
    lengths = {len(sizes) for sizes in seen.values()}
    if len(lengths) > 1 or min(lengths, default=least) < least:
        raise MalformedReply("impossible counts in a tally")
    return seen


def _seen_size(name: str, value: object) -> float:
    """Return the size of a quantity; a count is positive, as the contract demands of replies."""
    if name in COUNTS and name != "lr_sum":
        return integer(value, least=1)
    size = _size(value)
    if name in COUNTS and not size:
        raise MalformedReply("impossible counts in a tally")
    return size


def _size(value: object) -> float:
    """Return a number that is not negative; an integer remains one."""
    size = integer(value) if type(value) is int else number(value)
    if size < 0:
        raise MalformedReply("wrong number in a tally")
    return size


def _written_held(measured: Measured) -> dict[str, Any]:
    reply, sizes, low, rises = measured
    values = {name: getattr(reply, name) for name in PLAIN} | {"metrics": dict(reply.metrics)}
    return {
        **values,
        "sizes": dict(sizes),
        "low": [*low],
        "rises": {name: [*rise] for name, rise in rises.items()},
    }


def _held(value: object, tensors: Tensors, empty: Tally, like: Mapping[str, Vector]) -> Measured:
    """Return a reply and its measurements; the guard has checked it where it was collected."""
    values = table(value, {*PLAIN, "sizes", "low", "rises"})
    if tensors.keys() != like.keys():
        raise MalformedReply("wrong vectors of a tally")
    reply = Reply(
        client=integer(values["client"]),
        round=integer(values["round"]),
        vectors=Vectors((name, alike(tensors, name, vector)) for name, vector in like.items()),
        examples=integer(values["examples"], least=1),
        steps=integer(values["steps"], least=1),
        lr_sum=_size(values["lr_sum"]),
        nonce=text(values["nonce"]),
        seconds=_size(values["seconds"]),
        metrics={k: number(v, finite=False) for k, v in table(values["metrics"]).items()},
        received=None if values["received"] is None else integer(values["received"]),
    )
    sizes = table(values["sizes"], empty.admission.quantities)
    low = tuple(text(name) for name in items(values["low"], most=len(like)))
    rises = {
        name: [_size(rise) for rise in items(each, least=len(like[name]), most=len(like[name]))]
        for name, each in table(values["rises"], empty.admission.moments).items()
    }
    if not {*low} <= {*like}:
        raise MalformedReply("wrong text in a tally")
    return Measured(reply, {name: _size(size) for name, size in sizes.items()}, low, rises)


def _written_usable(tally: Tally) -> list[list[int | None]]:
    """Return each client with the position of its reply among those held, or None."""
    places = {id(measured): i for i, measured in enumerate(tally.held)}
    return [[client, places.get(id(measured))] for client, measured in tally.usable.items()]


def _usable(
    value: object, held: list[Measured], share: Collection[int]
) -> dict[int, Measured | None]:
    pairs = [items(pair, least=2, most=2) for pair in items(value, most=len(share))]
    _clients([client for client, _ in pairs], share)
    usable = {
        integer(client): None if place is None else held[integer(place, most=len(held) - 1)]
        for client, place in pairs
    }
    if any(measured and measured.reply.client != client for client, measured in usable.items()):
        raise MalformedReply("wrong clients of a tally")
    return usable


def _written_limits(limits: Mapping[str, Limit] | None) -> dict[str, list[float]] | None:
    return None if limits is None else {name: [*limit] for name, limit in limits.items()}


def _read_limits(value: object, empty: Tally) -> None:
    """Take the limits that a share set in the first round; limits already known must be equal."""
    admission = empty.admission
    if value == _written_limits(admission.limits):
        return
    if admission.limits is not None:
        raise MalformedReply("other limits than this round's")
    admission.limits = {
        name: Limit(*(_size(end) for end in items(ends, least=4, most=4)))
        for name, ends in table(value, admission.quantities).items()
    }
    if empty.held or empty.usable:
        raise MalformedReply("limits and replies that wait for them")
