"""The configuration of a run as plain values: runs with the same one give the same bits.

An object of this package is described by a name that does not change when its file moves: an
algorithm by its spec, an aggregator by its registry name, a dataclass by its class.  Functions and
classes are described by their import path, tensors and arrays by their type, shape and a hash.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
from collections.abc import Mapping, Sequence, Set
from enum import Enum
from pathlib import PurePath
from typing import Any

import torch
from torch import Tensor, nn

from ...algorithms import Algorithm
from ...errors import FedladaError
from ...protocol.codecs import Codecs
from ..aggregate.mean import Mean

__all__ = ["Plain", "describe", "described", "differences", "fingerprint"]

Plain = None | bool | int | float | str | list["Plain"] | dict[str, "Plain"]

CHUNK = 2**20
"""Bytes of a tensor that are hashed at a time."""


def describe(value: object) -> Plain:
    """Return ``value`` as plain values for JSON, the same in every process.

    Raises an error for a value that cannot be distinguished from others of its type.
    """
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Algorithm):
        return {name: describe(item) for name, item in value.spec().items()}
    if isinstance(value, Codecs):
        return str(value)
    if value is Mean:
        return "mean"
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: describe(getattr(value, f.name)) for f in described(value)}
        return {"is": type(value).__name__} | fields
    if isinstance(value, torch.dtype | torch.device | torch.Size | PurePath):
        return str(value)
    if isinstance(value, Tensor):
        return f"tensor {value.dtype} {list(value.shape)} {_hash(value)}"
    return _collection(value)


def described(value: Any) -> list[dataclasses.Field[Any]]:
    """Return the fields of a dataclass without new ones that are not used.

    Runs that an earlier version began can then be resumed.
    """
    return [
        f
        for f in dataclasses.fields(value)
        if not ("new" in f.metadata and getattr(value, f.name) == f.default)
    ]


def _collection(value: object) -> Plain:
    """Describe a collection, an array, a partial function, a module, or a named object."""
    if isinstance(value, Mapping):
        return {str(key): describe(item) for key, item in value.items()}
    if isinstance(value, Sequence):
        return [describe(item) for item in value]
    if isinstance(value, Set):
        return sorted(map(describe, value), key=_text)
    if all(hasattr(value, name) for name in ("dtype", "shape", "tobytes", "tolist")):
        return _array(value)
    if isinstance(value, functools.partial):
        parts = {"function": value.func, "args": value.args, "keywords": value.keywords}
        return {"is": "functools.partial", **{n: describe(part) for n, part in parts.items()}}
    if isinstance(value, nn.Module):  # such as a loss
        return {"is": _path(type(value)), "state": describe(value.state_dict()), **_module(value)}
    if isinstance(value, Enum):
        return f"{_path(type(value))}.{value.name}"
    return _named(value)


def _module(module: nn.Module) -> dict[str, Plain]:
    """Describe a module by the plain values and the modules in it."""
    plain = bool | int | float | str | None
    values = {n: v for n, v in vars(module).items() if isinstance(v, plain) and n != "training"}
    return {
        "as": type(module).__name__,
        "own": {name: value for name, value in values.items() if not name.startswith("_")},
        "of": {name: _module(inner) for name, inner in module.named_children()},
    }


def _array(value: Any) -> Plain:
    """Describe an array or a scalar of numpy, or of a library that imitates it."""
    if tuple(value.shape) == ():
        return describe(value.item())
    if getattr(value.dtype, "hasobject", False):  # its bytes are addresses
        return describe(value.tolist())
    digest = hashlib.sha256(value.tobytes()).hexdigest()[:16]
    return f"array {value.dtype} {list(value.shape)} {digest}"


def _named(value: object) -> str:
    """Return the import path of a function or class."""
    if not (callable(value) and hasattr(value, "__name__")):
        raise FedladaError(
            f"{value!r:.200} is a {_path(type(value))}, whose content cannot be compared, so a"
            " resumed run could not check that it is the same; make it a dataclass, a function, or"
            " plain values such as numbers and text"
        )
    return _path(value)


def _path(named: object) -> str:
    name = getattr(named, "__qualname__", getattr(named, "__name__", ""))
    return f"{getattr(named, '__module__', '')}.{name}"


def _hash(t: Tensor) -> str:
    content = t.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    digest = hashlib.sha256()
    for chunk in torch.split(content, CHUNK):
        digest.update(bytes(chunk.tolist()))
    return digest.hexdigest()[:16]


def fingerprint(config: Mapping[str, Plain]) -> str:
    """Return a short hash of a configuration."""
    return hashlib.sha256(_text(config).encode()).hexdigest()[:16]


def differences(now: Mapping[str, Plain], then: Mapping[str, Plain]) -> list[str]:
    """Return a phrase for each key that differs: ``algorithm.lr is 0.02 and was 0.01``."""
    new, old = _flat(now), _flat(then)
    return [
        f"{key} is {_say(new, key)} and was {_say(old, key)}"
        for key in sorted(new.keys() | old.keys())
        if not (key in new and key in old and _same(new[key], old[key]))
    ]


def _same(one: object, other: object) -> bool:
    """Return whether two values are equal, as values or as JSON: NaN is NaN, and 1 is 1.0."""
    return one == other or _text(one) == _text(other)


def _text(value: object) -> str:
    return json.dumps(value, sort_keys=True)


def _flat(config: Mapping[str, Plain], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, dict):
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat


def _say(flat: Mapping[str, Any], key: str) -> str:
    return json.dumps(flat[key]) if key in flat else "not there"
