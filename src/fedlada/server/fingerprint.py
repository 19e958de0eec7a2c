"""The configuration of a run as plain values: runs with the same one give the same bits.

An object of this package is described by a name that does not change when its file moves: an
algorithm by its spec, an aggregator by its registry name, a dataclass by its class.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import PurePath
from typing import Any

import torch
from torch import Tensor

from ..algorithms import Algorithm
from ..protocol.codecs import Codecs
from .mean import Mean

__all__ = ["Plain", "describe", "differences", "fingerprint"]

Plain = None | bool | int | float | str | list["Plain"] | dict[str, "Plain"]


def describe(value: object) -> Plain:
    """Return ``value`` as plain values for JSON, the same in every process."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Algorithm):
        return {name: describe(item) for name, item in value.spec().items()}
    if isinstance(value, Codecs):
        return str(value)
    if value is Mean:
        return "mean"
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        own = {f.name: describe(getattr(value, f.name)) for f in dataclasses.fields(value)}
        return {"is": type(value).__name__} | own
    if isinstance(value, Mapping):
        return {str(key): describe(item) for key, item in value.items()}
    if isinstance(value, Sequence):
        return [describe(item) for item in value]
    if isinstance(value, Tensor):
        content = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        return hashlib.sha256(bytes(content.tolist())).hexdigest()[:16]
    if isinstance(value, torch.dtype | torch.Size | PurePath):
        return str(value)
    return _name(value)


def fingerprint(config: Mapping[str, Plain]) -> str:
    """Return a short hash of a configuration."""
    return hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()[:16]


def differences(now: Mapping[str, Plain], then: Mapping[str, Plain]) -> list[str]:
    """Return a phrase for each key that differs: ``algorithm.lr is 0.02 and was 0.01``."""
    new, old = _flat(now), _flat(then)
    return [
        f"{key} is {_say(new, key)} and was {_say(old, key)}"
        for key in sorted(new.keys() | old.keys())
        if new.get(key, ...) != old.get(key, ...)
    ]


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


def _name(value: object) -> str:
    """Return the import path of a function or class, or that of an object's type."""
    named: object | Callable[..., object] = value if hasattr(value, "__qualname__") else type(value)
    return f"{getattr(named, '__module__', '')}.{getattr(named, '__qualname__', '')}"
