"""A private reply under masks, and what the server reads in the sum of a group.

The whole numbers of all vectors, as the codec ``fixed`` makes them, are one vector of int32 under
masks.  It ends with one number for each vector: 1 if the vector was below its clip, else 0.  These
travel as metrics.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from ..algorithms import Vector, Vectors
from ..protocol.codecs import Codecs, MalformedReply
from ..protocol.codecs.fixed import length_of, uncut
from ..protocol.messages import Reply, Task
from ..protocol.wire import send
from .masking import Masker
from .news import BELOW

__all__ = ["masked_reply", "parts_of", "whole_of"]

LIMIT = 2**31
"""Masked numbers are below this, and at least its opposite."""


def masked_reply(reply: Reply, task: Task, masker: Masker) -> Reply:
    """Return a private reply under the masks of a client."""
    assert task.sealed is not None
    names = sorted(reply.vectors)
    sent = send(reply.vectors, Codecs({}, {"*": "fixed"}), "up", seed=0)
    bits = torch.tensor([_uncut(sent.vectors[name]) for name in names], dtype=torch.int32)
    whole = torch.cat([*(sent.payload(name).view(torch.int32) for name in names), bits])
    masked = parts_of(masker.mask(whole, task.sealed[reply.client]), reply.vectors)
    shaped = Vectors((n, _shaped(masked[n], reply.vectors[n])) for n in reply.vectors)
    last = zip(names, masked[BELOW].tolist(), strict=True)
    return replace(reply, vectors=shaped, metrics={BELOW + name: float(bit) for name, bit in last})


def whole_of(reply: Reply) -> Tensor:
    """Return the one vector of a masked reply, whose form was checked."""
    names = sorted(reply.vectors)
    bits = [_whole(reply.metrics.get(BELOW + name)) for name in names]
    if len(reply.metrics) != len(bits):
        raise MalformedReply("wrong metrics")
    flat = (t.reshape(-1) for name in names for t in reply.vectors[name])
    return torch.cat([*flat, torch.tensor(bits, dtype=torch.int32)])


def parts_of(whole: Tensor, like: Mapping[str, Vector]) -> dict[str, Tensor]:
    """Return the numbers of each vector by name, and those of the bits as ``BELOW``."""
    names = sorted(like)
    parts = torch.split(whole, [*(like[name].numel() for name in names), len(names)])
    return dict(zip([*names, BELOW], parts, strict=True))


def _uncut(vector: Vector) -> bool:
    return uncut(length_of(vector), vector.numel())


def _shaped(numbers: Tensor, like: Vector) -> Vector:
    parts = torch.split(numbers, [t.numel() for t in like])
    return Vector(part.view(t.shape) for part, t in zip(parts, like, strict=True))


def _whole(value: float | None) -> int:
    if value is None or not (-LIMIT <= value < LIMIT and value == int(value)):
        raise MalformedReply("wrong metrics")
    return int(value)
