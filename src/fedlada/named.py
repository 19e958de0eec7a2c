"""Objects by name: the tables of this package, and paths into other packages.

An ingredient of another package needs no table: write ``"package.module:Name"`` wherever a name
is allowed.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import TypeVar

from .errors import FedladaError, require, require_known

__all__ = ["by_name", "choose", "find", "word"]

T = TypeVar("T")


def find(path: str, what: str) -> object:
    """Import and return the object that ``package.module:NAME`` names."""
    module_name, _, attribute = path.partition(":")
    try:
        return getattr(importlib.import_module(module_name), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise FedladaError(
            f"{path!r} leads to no {what} ({error}); write it as 'package.module:NAME', where NAME"
            f" is the {what} in a module that Python can import"
        ) from error


def by_name(module: Mapping[str, object], base: type[T]) -> dict[str, type[T]]:
    """Return the ingredients that a module imports, by the name that each class says."""
    kinds = [kind for kind in module.values() if isinstance(kind, type) and issubclass(kind, base)]
    return {vars(kind)["name"]: kind for kind in kinds if "name" in vars(kind)}


def choose(name: str, table: Mapping[str, type[T]], kind: str, base: type[T]) -> type[T]:
    """Return the ingredient of a table's name, or of a ``package.module:Name`` path."""
    if ":" not in name:
        require_known(name, table, f"no {kind} {name!r}")
        return table[name]
    outside = find(name, kind)
    require(
        isinstance(outside, type) and issubclass(outside, base),
        f"{name!r} is {outside!r}; a {kind} must be a subclass of {base.__name__}",
    )
    assert isinstance(outside, type)
    return outside


def word(owner: object, table: Mapping[str, type]) -> str:
    """Return the name of an ingredient in a table, or its path if it has none."""
    kind = type(owner)
    name = str(getattr(kind, "name", ""))
    return name if table.get(name) is kind else f"{kind.__module__}:{kind.__qualname__}"
