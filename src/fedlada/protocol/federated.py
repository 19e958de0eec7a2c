"""Which tensors of a model are federated: its trainable parameters and, if asked, its buffers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.parameter import is_lazy

from ..algorithms import Algorithm, Vector
from ..errors import require

__all__ = [
    "BUFFERS",
    "BufferPolicy",
    "clients_keep",
    "constant_buffers",
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
    _check_model(model)
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


def _check_model(model: object) -> None:
    """Check that the model is a module with values in all of its tensors."""
    name = getattr(model, "__name__", type(model).__name__)
    require(
        not isinstance(model, type),
        f"model is the class {name}; give an instance, {name}(...)",
    )
    require(
        isinstance(model, nn.Module),
        f"model is a {type(model).__name__}; it must be a torch.nn.Module",
    )
    assert isinstance(model, nn.Module)
    for name, t in [*model.named_parameters(), *model.named_buffers()]:
        require(
            not is_lazy(t),
            f"{name!r} of the model has no shape yet, since a layer is lazy; call the model once on"
            " a batch before you give it away, or write the sizes of its layers",
        )
        require(
            not t.is_meta,
            f"{name!r} of the model is on the device 'meta', where tensors have no numbers; build"
            " the model on a real device, such as torch.device('cpu')",
        )


def federated_buffers(model: nn.Module, policy: BufferPolicy) -> Vector:
    """Return the floating-point buffers that training may change, in ``state_dict`` order.

    With policy ``refuse``, a model with the statistics of a BatchNorm is an error, and every other
    buffer is taken for a constant, such as a mask or a table of positions.  With ``average``,
    buffers are sent down with x, sent back and averaged like parameters.  With ``local``, each
    client keeps its own from round to round, and the server's do not change.  Both leave out
    buffers with numbers that are not finite, such as a mask of -inf: no mean can hold them, so they
    are constants as well.  Integer buffers (BatchNorm's batch counter) are ignored.
    """
    require(
        policy in get_args(BufferPolicy),
        f"buffers is {policy!r}; it must be one of {', '.join(get_args(BufferPolicy))}",
    )
    buffers, statistics = _float_buffers(model), _statistics(model)
    found = [name for name in buffers if name in statistics]
    require(
        policy != "refuse" or not found,
        f"the model has buffers that training may change ({', '.join(found[:3])}"
        f"{', ...' if len(found) > 3 else ''}): averaging BatchNorm statistics over unlike clients"
        " often hurts, so say what you want: buffers='average', buffers='local', or replace"
        " BatchNorm by GroupNorm",
    )
    if policy == "refuse":
        return Vector([])
    return Vector(
        b for name, b in buffers.items() if name in statistics or bool(torch.isfinite(b).all())
    )


def constant_buffers(model: nn.Module, policy: BufferPolicy) -> dict[str, Tensor]:
    """Return the floating-point buffers that no side sends or keeps: training may not change them.

    A client's round checks this, so a buffer that is taken for a constant and is none is an error.
    """
    federated = {id(b) for b in federated_buffers(model, policy)}
    return {name: b for name, b in _float_buffers(model).items() if id(b) not in federated}


def _float_buffers(model: nn.Module) -> dict[str, Tensor]:
    state = model.state_dict(keep_vars=True)
    return {n: b for n, b in model.named_buffers() if n in state and b.is_floating_point()}


def _statistics(model: nn.Module) -> set[str]:
    """Return the names of the buffers of BatchNorm and its kin."""
    return {
        f"{prefix}.{name}" if prefix else name
        for prefix, module in model.named_modules()
        if isinstance(module, _NormBase)
        for name, _ in module.named_buffers(recurse=False)
    }


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
