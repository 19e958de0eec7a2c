"""The named algorithms, one line each, and how to ask for any other composition."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from .adam import Adam, AMSGrad
from .amend import Amend
from .composition import Algorithm, nearest
from .dyn import Dyn
from .part import Correction, LocalRule, Part, require
from .prox import Prox
from .scaffold import Scaffold
from .server import Adagrad, Averaging, Momentum, ServerAdam, Yogi
from .sgd import SGD

__all__ = ["ALGORITHMS", "CORRECTIONS", "LOCAL_RULES", "SERVER_RULES", "algorithm", "compose"]

T = TypeVar("T")

ALGORITHMS: dict[str, Algorithm] = {
    "fedavg": Algorithm(SGD()),
    "fedavgm": Algorithm(SGD(), server=Momentum()),
    "fedprox": Algorithm(Prox(SGD())),
    "scaffold": Algorithm(Scaffold(SGD())),
    "feddyn": Algorithm(Dyn(SGD())),
    "fedcm": Algorithm(Amend(SGD())),
    "fedadam": Algorithm(SGD(), server=ServerAdam()),
    "fedyogi": Algorithm(SGD(), server=Yogi()),
    "fedadagrad": Algorithm(SGD(), server=Adagrad()),
    "fedadam-amended": Algorithm(Amend(SGD()), server=ServerAdam()),
    "localadam": Algorithm(Adam()),
    "localamsgrad": Algorithm(AMSGrad()),
    "fedlada": Algorithm(Amend(AMSGrad())),
}

LOCAL_RULES: dict[str, Callable[[], LocalRule]] = {"sgd": SGD, "adam": Adam, "amsgrad": AMSGrad}
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


def algorithm(name: str | Mapping[str, Any] | Algorithm, **settings: Any) -> Algorithm:
    """An algorithm by name, with other hyper-parameters where given.

    ``name`` is one of :data:`ALGORITHMS`; or ``"package.module:NAME"``, an
    :class:`Algorithm` of somebody else's; or a mapping for :func:`compose` (as read from a
    config file), hyper-parameters included; or an algorithm itself.

    >>> algorithm("fedlada", lr=0.01, alpha=0.05)
    >>> algorithm({"local": "amsgrad", "corrections": ["amend", "prox"], "mu": 0.1})
    """
    if isinstance(name, Algorithm):
        found = name
    elif isinstance(name, Mapping):
        structure = {key: name[key] for key in ("local", "corrections", "server") if key in name}
        found = compose(**structure)
        settings = {key: name[key] for key in name if key not in structure} | settings
    elif ":" in name:
        found = _outside(name)
    else:
        require(name in ALGORITHMS, f"no algorithm {name!r}; {nearest(name, ALGORITHMS)}")
        found = ALGORITHMS[name]
    return found.replace(**settings) if settings else found


def compose(
    *, local: str = "sgd", corrections: list[str] | None = None, server: str = "averaging"
) -> Algorithm:
    """Any local rule in any corrections (outermost first) under any server rule, by name."""
    part: Part = _choose(local, LOCAL_RULES, "local rule")()
    for correction in reversed(corrections or []):
        part = _choose(correction, CORRECTIONS, "correction")(part)
    return Algorithm(part, server=_choose(server, SERVER_RULES, "server rule")())


def _choose(name: str, table: Mapping[str, T], kind: str) -> T:
    require(name in table, f"no {kind} {name!r}; {nearest(name, table)}")
    return table[name]


def _outside(path: str) -> Algorithm:
    module_name, _, attribute = path.partition(":")
    try:
        found = getattr(importlib.import_module(module_name), attribute)
    except (ImportError, AttributeError) as error:
        raise ValueError(
            f"{path!r} leads to no algorithm ({error}); write it as 'package.module:NAME', where"
            " NAME is an Algorithm in a module that Python can import"
        ) from error
    require(
        isinstance(found, Algorithm),
        f"{path!r} is a {type(found).__name__}; it must be an Algorithm, for example"
        " NAME = Algorithm(Amend(SGD(), alpha=0.2))",
    )
    assert isinstance(found, Algorithm)
    return found
