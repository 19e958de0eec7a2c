"""What a run is, as plain values: two runs with the same configuration give the same bits."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import PurePath
from typing import Any

import torch
from torch import Tensor

from .algorithms import Algorithm

__all__ = ["describe", "differences", "fingerprint"]

Plain = None | bool | int | float | str | list["Plain"] | dict[str, "Plain"]


def describe(value: object) -> Plain:
    """A value that JSON can hold, the same in every process."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Algorithm):
        chain = [type(part).__name__ for part in value.part.chain()]
        return {
            "chain": [*chain, type(value.server).__name__],
            **{name: describe(setting) for name, setting in value.settings().items()},
        }
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
    """A short name for a configuration."""
    return hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()[:16]


def differences(now: Mapping[str, Plain], then: Mapping[str, Plain]) -> list[str]:
    """Each key whose value is another, as ``algorithm.lr is 0.02 and was 0.01``."""
    new, old = _flat(now), _flat(then)
    return [
        f"{key} is {_say(new, key)} and was {_say(old, key)}"
        for key in sorted(new.keys() | old.keys())
        if new.get(key, ...) != old.get(key, ...)
    ]


def _flat(config: Mapping[str, Plain], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, dict):
            found |= _flat(value, f"{prefix}{key}.")
        else:
            found[prefix + key] = value
    return found


def _say(flat: Mapping[str, Any], key: str) -> str:
    return json.dumps(flat[key]) if key in flat else "not there"


def _name(value: object) -> str:
    """Functions and classes by their name, objects by their type's: an address means nothing."""
    named: object | Callable[..., object] = value if hasattr(value, "__qualname__") else type(value)
    return f"{getattr(named, '__module__', '')}.{getattr(named, '__qualname__', '')}"
