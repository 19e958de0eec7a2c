"""Which tensors of a model are federated: its trainable parameters and, if asked, its buffers."""

from __future__ import annotations

from collections.abc import Sequence
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
    "variances",
]

BUFFERS = "buffers"
"""The name of the vector of averaged or kept buffers; algorithms declare the other names."""

BufferPolicy = Literal["refuse", "average", "local"]


def federated_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return the trainable parameters by their ``state_dict`` names; a tied weight appears once.

    Frozen parameters are never sent: a model with adapters sends only its adapters.
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
    """Return the floating-point buffers in ``state_dict`` order.

    With policy ``refuse``, a model with such buffers is an error.  With ``average``, they are sent
    down with x, sent back and averaged like parameters.  With ``local``, each client keeps its own
    from round to round, and the server's do not change.  Integer buffers (BatchNorm's batch
    counter) are ignored.
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
    """Return the ``state_dict`` names of the federated ``parameters`` and ``buffers``, in order."""
    by_identity = {id(b): name for name, b in model.named_buffers()}
    buffers = [by_identity[id(b)] for b in federated_buffers(model, policy)]
    return {"parameters": list(federated_parameters(model)), "buffers": buffers}


def variances(buffers: Sequence[str]) -> tuple[int, ...]:
    """Return the positions of the variances among buffers: a BatchNorm's ``running_var``."""
    return tuple(i for i, name in enumerate(buffers) if name.rpartition(".")[2] == "running_var")


def clients_keep(algorithm: Algorithm, policy: BufferPolicy) -> bool:
    """Return whether clients keep vectors between rounds."""
    return bool(algorithm.client_state) or policy == "local"


def kind_of(vector: str) -> Literal["parameters", "buffers"]:
    """Return whether a vector has the layout of the parameters or that of the buffers."""
    return "buffers" if vector == BUFFERS else "parameters"
