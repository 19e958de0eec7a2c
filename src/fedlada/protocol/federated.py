"""Finds the tensors of a model that are federated, and those that stay on each client.

Federated are the trainable parameters, and buffers if wanted.  Tensors whose names match a pattern
of ``personal`` are not: each client keeps its own from round to round.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.parameter import is_lazy

from ..algorithms import Algorithm, Vector
from ..errors import FedladaError, nearest, require

__all__ = [
    "BUFFERS",
    "PERSONAL",
    "BufferPolicy",
    "clients_keep",
    "constant_buffers",
    "federated_buffers",
    "federated_names",
    "federated_parameters",
    "kind_of",
    "personal_tensors",
    "variances",
]

BUFFERS = "buffers"
"""The name of the vector of averaged or kept buffers; algorithms declare the other names."""

PERSONAL = "personal"
"""The name of the vector of personal tensors: parameters first, then buffers."""

BufferPolicy = Literal["refuse", "average", "local"]


def federated_parameters(model: nn.Module, personal: Sequence[str] = ()) -> dict[str, nn.Parameter]:
    """Return the shared parameters by their ``state_dict`` names; a tied weight appears once.

    They are the trainable parameters that are not ``personal``.  Frozen parameters are never sent:
    a model with adapters sends only its adapters.
    """
    parameters = _trainable(model)
    if not personal:
        return parameters
    own = personal_tensors(model, personal)
    return {name: p for name, p in parameters.items() if name not in own}


def personal_tensors(model: nn.Module, personal: Sequence[str]) -> dict[str, Tensor]:
    """Return the tensors that match a pattern: trainable parameters, then floating-point buffers.

    Raises an error if a pattern matches none of them, or if no parameter is left to share.
    """
    if not personal:
        return {}
    parameters = _trainable(model)
    tensors: dict[str, Tensor] = {**parameters, **_float_buffers(model)}
    for pattern in personal:
        if not any(fnmatchcase(name, pattern) for name in tensors):
            raise FedladaError(
                f"personal has {pattern!r}, which matches no trainable parameter and no buffer of"
                f" the model; {nearest(pattern, _patterns(tensors))}"
            )
    own = {name: t for name, t in tensors.items() if _matches(name, personal)}
    require(
        not own.keys() >= parameters.keys(),
        f"personal matches all {len(parameters)} trainable parameters, so none is left to share;"
        " give patterns that match a part of the model, such as 'head.*'",
    )
    _check_ties(model, personal, {id(t) for t in own.values()})
    return own


def _matches(name: str, personal: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in personal)


def _patterns(names: Iterable[str]) -> set[str]:
    """Return a pattern for each module that has one of these tensors, or its name if none has."""
    parents = ((name, name.rpartition(".")[0]) for name in names)
    return {f"{parent}.*" if parent else name for name, parent in parents}


def _check_ties(model: nn.Module, personal: Sequence[str], own: set[int]) -> None:
    """Check that a tied weight, which has several names, is personal by each of them or by none."""
    for name, p in model.named_parameters(remove_duplicate=False):
        require(
            not p.requires_grad or _matches(name, personal) == (id(p) in own),
            f"{name!r} is the same tensor as another parameter, and personal matches only one of"
            " their names; give patterns that match both or neither",
        )


def _trainable(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return the trainable parameters, checked."""
    _check_model(model)
    parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
    require(
        bool(parameters),
        "the model has no trainable parameter; call requires_grad_(True) on those to train",
    )
    for name, p in parameters.items():
        require(
            p.is_floating_point(),
            f"parameter {name!r} is {p.dtype}; only real floating-point parameters can be"
            " federated: freeze it with requires_grad_(False)",
        )
        require(
            torch.empty_like(p).stride() == p.stride(),
            f"the elements of parameter {name!r} do not lie side by side in memory: it is a view"
            " with gaps, such as w[:, ::2], or an expanded one; replace it by"
            " nn.Parameter(p.detach().contiguous())",
        )
    _check_memory(parameters)
    return parameters


def _check_memory(parameters: Mapping[str, nn.Parameter]) -> None:
    """Check that no two parameters share memory: a step of one would move the other."""
    places = sorted(  # by the storage and the bytes of it; a faked tensor has no address
        (
            p.untyped_storage()._cdata,
            p.storage_offset() * p.element_size(),
            p.numel() * p.element_size(),
            name,
        )
        for name, p in parameters.items()
        if p.device.type in ("cpu", "cuda") and p.numel()
    )
    for (storage, start, size, name), (other, after, _, second) in itertools.pairwise(places):
        require(
            storage != other or start + size <= after,
            f"parameters {name!r} and {second!r} overlap in memory, so a step of one would change"
            " the other; tie them by using one nn.Parameter in both places, or copy one with"
            " nn.Parameter(p.detach().clone())",
        )


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
            " a batch first, or give the sizes of its layers",
        )
        require(
            not t.is_meta,
            f"{name!r} of the model is on the device 'meta', where tensors have no numbers; build"
            " the model on a real device, such as torch.device('cpu')",
        )


def federated_buffers(
    model: nn.Module, policy: BufferPolicy, personal: Sequence[str] = ()
) -> Vector:
    """Return the floating-point buffers that training may change, in ``state_dict`` order.

    With policy ``refuse``, a model with the statistics of a BatchNorm is an error, and every other
    buffer is treated as a constant, such as a mask or a table of positions.  With ``average``,
    buffers are sent down with x, sent back and averaged like parameters.  With ``local``, each
    client keeps its own from round to round, and the server's do not change.  Both leave out
    buffers with numbers that are not finite, such as a mask of -inf: they cannot be averaged, so
    they are treated as constants, too.  Integer buffers (BatchNorm's batch counter) are ignored.
    No policy concerns buffers that are ``personal``.
    """
    require(
        policy in get_args(BufferPolicy),
        f"buffers is {policy!r}; it must be one of {', '.join(get_args(BufferPolicy))}",
    )
    buffers, statistics = _float_buffers(model), _statistics(model)
    if personal:
        buffers = {name: b for name, b in buffers.items() if not _matches(name, personal)}
    changing = [name for name in buffers if name in statistics]
    require(
        policy != "refuse" or not changing,
        f"the model has buffers that training may change ({', '.join(changing[:3])}"
        f"{', ...' if len(changing) > 3 else ''}). Averaging BatchNorm statistics over"
        " heterogeneous clients often hurts, so choose buffers='average' or buffers='local', or"
        " replace BatchNorm by GroupNorm",
    )
    if policy == "refuse":
        return Vector([])
    return Vector(
        b for name, b in buffers.items() if name in statistics or bool(torch.isfinite(b).all())
    )


def constant_buffers(
    model: nn.Module, policy: BufferPolicy, personal: Sequence[str] = ()
) -> dict[str, Tensor]:
    """Return the floating-point buffers that are neither sent nor kept, so must not change.

    A client's round checks this and raises an error if training changed one of them.
    """
    changing = {id(b) for b in federated_buffers(model, policy, personal)}
    changing |= {id(t) for t in personal_tensors(model, personal).values()}
    return {name: b for name, b in _float_buffers(model).items() if id(b) not in changing}


def _float_buffers(model: nn.Module) -> dict[str, Tensor]:
    state = model.state_dict(keep_vars=True)
    return {n: b for n, b in model.named_buffers() if n in state and b.is_floating_point()}


def _statistics(model: nn.Module) -> set[str]:
    """Return the names of the buffers of BatchNorm and similar layers."""
    return {
        f"{prefix}.{name}" if prefix else name
        for prefix, module in model.named_modules()
        if isinstance(module, _NormBase)
        for name, _ in module.named_buffers(recurse=False)
    }


def federated_names(
    model: nn.Module, policy: BufferPolicy, personal: Sequence[str] = ()
) -> dict[str, list[str]]:
    """Return the ``state_dict`` names of the federated ``parameters`` and ``buffers``, in order.

    If some are personal, their names follow as ``personal``.
    """
    by_identity = {id(b): name for name, b in model.named_buffers()}
    buffers = [by_identity[id(b)] for b in federated_buffers(model, policy, personal)]
    names = {"parameters": list(federated_parameters(model, personal)), "buffers": buffers}
    return names | ({PERSONAL: list(personal_tensors(model, personal))} if personal else {})


def variances(buffers: Sequence[str]) -> tuple[int, ...]:
    """Return the positions of the variances among buffers: a BatchNorm's ``running_var``."""
    return tuple(i for i, name in enumerate(buffers) if name.rpartition(".")[2] == "running_var")


def clients_keep(algorithm: Algorithm, policy: BufferPolicy, personal: Sequence[str] = ()) -> bool:
    """Return whether clients keep vectors between rounds."""
    return bool(algorithm.client_state or personal) or policy == "local"


def kind_of(vector: str) -> Literal["parameters", "buffers", "personal"]:
    """Return whose layout a vector has: that of the parameters, the buffers or personal tensors."""
    if vector == BUFFERS:
        return "buffers"
    return "personal" if vector == PERSONAL else "parameters"
