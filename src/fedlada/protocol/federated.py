"""Which tensors of a model are federated: its trainable parameters and, if wished, its buffers."""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import nn

from ..algorithms import Algorithm, Vector
from ..errors import require

__all__ = [
    "BUFFERS",
    "BufferPolicy",
    "clients_keep",
    "federated_buffers",
    "federated_names",
    "federated_parameters",
    "kind_of",
]

BUFFERS = "buffers"
"""The name of the vector of averaged or kept buffers, beside those that an algorithm declares."""

BufferPolicy = Literal["refuse", "average", "local"]


def federated_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """The trainable parameters by their ``state_dict`` names; a tied weight appears once.

    Frozen parameters never travel: a model with adapters sends only its adapters.
    """
    found = {name: p for name, p in model.named_parameters() if p.requires_grad}
    require(
        bool(found),
        "the model has no trainable parameter; call requires_grad_(True) on those to train",
    )
    for name, p in found.items():
        require(
            p.is_floating_point(),
            f"parameter {name!r} is {p.dtype}; only real floating-point parameters can be"
            " federated: freeze it with requires_grad_(False)",
        )
        require(
            torch.empty_like(p).stride() == p.stride(),
            f"parameter {name!r} shares memory between its own elements (an expanded view);"
            " replace it by a parameter of its own",
        )
    return found


def federated_buffers(model: nn.Module, policy: BufferPolicy) -> Vector:
    """The floating-point buffers in ``state_dict`` order, as the policy treats them.

    ``refuse``: a model with such buffers is an error; ``average``: they travel down with x and
    come up to be averaged as parameters are; ``local``: each client keeps its own from round to
    round and the server's stay as they began.  Integer buffers (BatchNorm's batch counter) are
    left alone.
    """
    require(
        policy in get_args(BufferPolicy),
        f"buffers is {policy!r}; it must be one of {', '.join(get_args(BufferPolicy))}",
    )
    state = model.state_dict(keep_vars=True)
    found = {n: b for n, b in model.named_buffers() if n in state and b.is_floating_point()}
    require(
        policy != "refuse" or not found,
        f"the model has buffers that training may change ({', '.join(list(found)[:3])}"
        f"{', ...' if len(found) > 3 else ''}): averaging BatchNorm statistics over unlike clients"
        " often hurts, so say what you want: buffers='average', buffers='local', or replace"
        " BatchNorm by GroupNorm",
    )
    return Vector(found.values())


def federated_names(model: nn.Module, policy: BufferPolicy) -> dict[str, list[str]]:
    """The ``state_dict`` names of the federated ``parameters`` and ``buffers``, in their order."""
    by_identity = {id(b): name for name, b in model.named_buffers()}
    buffers = [by_identity[id(b)] for b in federated_buffers(model, policy)]
    return {"parameters": list(federated_parameters(model)), "buffers": buffers}


def clients_keep(algorithm: Algorithm, policy: BufferPolicy) -> bool:
    """Tell whether clients keep anything between rounds."""
    return bool(algorithm.client_state) or policy == "local"


def kind_of(vector: str) -> Literal["parameters", "buffers"]:
    """Tell whether a vector has the layout of the parameters or that of the buffers."""
    return "buffers" if vector == BUFFERS else "parameters"
