"""The ingredients of this package by name, one line each.

An ingredient of another package needs no line: write ``"package.module:Name"`` wherever a name of
a table is allowed.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import TypeVar

from ..errors import FedladaError, nearest, require
from .adam import Adam, AMSGrad
from .amend import Amend
from .dyn import Dyn
from .part import Correction, LocalRule
from .prox import Prox
from .rows import AMSGradRows
from .scaffold import Scaffold
from .server import Adagrad, Averaging, Momentum, ServerAdam, Yogi
from .sgd import SGD

__all__ = ["CORRECTIONS", "LOCAL_RULES", "SERVER_RULES", "choose", "find", "word"]

T = TypeVar("T")

LOCAL_RULES: dict[str, type[LocalRule]] = {
    "sgd": SGD,
    "adam": Adam,
    "amsgrad": AMSGrad,
    "amsgrad-rows": AMSGradRows,
}
CORRECTIONS: dict[str, type[Correction]] = {
    "amend": Amend,
    "prox": Prox,
    "scaffold": Scaffold,
    "dyn": Dyn,
}
SERVER_RULES: dict[str, type[Averaging]] = {
    "averaging": Averaging,
    "momentum": Momentum,
    "adam": ServerAdam,
    "yogi": Yogi,
    "adagrad": Adagrad,
}


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


def choose(name: str, table: Mapping[str, type[T]], kind: str, base: type[T]) -> type[T]:
    """Return the ingredient of a table's name, or of a ``package.module:Name`` path."""
    if ":" not in name:
        require(name in table, f"no {kind} {name!r}; {nearest(name, table)}")
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
    words = [word for word, known in table.items() if known is kind]
    return words[0] if words else f"{kind.__module__}:{kind.__qualname__}"
