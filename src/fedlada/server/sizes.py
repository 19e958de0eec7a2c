"""The bytes of a run's messages, counted before it starts.

A vector with an exact codec has the same size in every round.  Other vectors are measured by
encoding random numbers: zstandard saves least there, so the vectors of a run are about as long or
shorter.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from ..algorithms import Vector, Vectors
from ..protocol.codecs import Way
from ..protocol.federated import BUFFERS, federated_buffers, federated_parameters
from ..protocol.wire import send
from .plan import Plan

__all__ = ["Sent", "message_bytes", "messages", "sizes"]


@dataclass(frozen=True)
class Sent:
    """A vector of a message with its direction, codec and bytes."""

    way: Way
    vector: str
    codec: str
    nbytes: int


def messages(plan: Plan, model: nn.Module) -> tuple[Vectors, Vectors]:
    """Return the vectors of the first task and of a reply to it; those of the reply are zero."""
    x = Vector(p.detach() for p in federated_parameters(model, plan.personal).values())
    down = plan.algorithm.start(x.clone()).only(plan.algorithm.down)
    up = Vectors((name, x.zeros(name)) for name in plan.algorithm.up)
    if plan.buffers == "average":
        up[BUFFERS] = down[BUFFERS] = federated_buffers(model, plan.buffers, plan.personal)
    return down, up


def sizes(plan: Plan, way: Way, vectors: Vectors) -> list[Sent]:
    """Return the bytes of each of these vectors of a message."""
    generator = torch.Generator().manual_seed(0)
    squares = {name for moment in plan.algorithm.moments for name in (moment.up, moment.of)}
    found = []
    for name, like in vectors.items():
        noise = Vector(torch.randn(t.shape, generator=generator).to(t.dtype) for t in like)
        noise = noise * noise if name in squares else noise
        parcel = send(Vectors({name: noise}), plan.codec, way, seed=0)
        found.append(Sent(way, name, plan.codec.name(way, name), parcel.nbytes))
    return found


def message_bytes(plan: Plan, model: nn.Module) -> tuple[int, int]:
    """Return the bytes of the vectors of one task, and of one reply."""
    down, up = messages(plan, model)
    return (
        sum(each.nbytes for each in sizes(plan, "down", down)),
        sum(each.nbytes for each in sizes(plan, "up", up)),
    )
