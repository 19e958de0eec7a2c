"""The ingredients of this package by name, one line each.

An ingredient of another package needs no line: write ``"package.module:Name"`` wherever a name of
a table is allowed.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import TypeVar

from ..errors import FedladaError, nearest, require
from .ada2 import UnsharedAdam
from .adam import Adam, AMSGrad
from .adamw import AdamW
from .adamw_rows import AdamWRows
from .amend import Amend
from .amend_added import AmendAdded
from .ams import ServerAMSGrad
from .dyn import Dyn
from .exp import ExP
from .lalr import SharedAMSGrad
from .lesam import LESAM
from .lion import Lion
from .muon import Muon
from .nesterov import Nesterov
from .nova import Nova
from .part import Correction, LocalRule
from .prox import Prox
from .rows import AMSGradRows
from .sam import SAM
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
    "amsgrad-shared": SharedAMSGrad,
    "adam-unshared": UnsharedAdam,
    "adamw": AdamW,
    "adamw-rows": AdamWRows,
    "lion": Lion,
    "muon": Muon,
}
CORRECTIONS: dict[str, type[Correction]] = {
    "amend": Amend,
    "amend-added": AmendAdded,
    "prox": Prox,
    "scaffold": Scaffold,
    "dyn": Dyn,
    "nova": Nova,
    "sam": SAM,
    "lesam": LESAM,
}
SERVER_RULES: dict[str, type[Averaging]] = {
    "averaging": Averaging,
    "momentum": Momentum,
    "nesterov": Nesterov,
    "exp": ExP,
    "adam": ServerAdam,
    "yogi": Yogi,
    "adagrad": Adagrad,
    "amsgrad": ServerAMSGrad,
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
