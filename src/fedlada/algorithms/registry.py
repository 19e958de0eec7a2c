"""The named algorithms, one line each, and how to ask for any other composition.

Every ingredient has one line in one of the tables below; one of somebody else's needs none and is
named ``"package.module:Name"`` wherever a word of a table is allowed.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from ..errors import FedladaError, nearest, require
from .adam import Adam, AMSGrad
from .amend import Amend
from .composition import Algorithm
from .dyn import Dyn
from .part import Correction, LocalRule, Part
from .prox import Prox
from .scaffold import Scaffold
from .server import Adagrad, Averaging, Momentum, ServerAdam, Yogi
from .sgd import SGD

__all__ = [
    "ALGORITHMS",
    "CORRECTIONS",
    "LOCAL_RULES",
    "SERVER_RULES",
    "algorithm",
    "compose",
    "find",
    "outside_names",
    "spec",
]

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

LOCAL_RULES: dict[str, type[LocalRule]] = {"sgd": SGD, "adam": Adam, "amsgrad": AMSGrad}
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

STRUCTURE = ("local", "corrections", "server")
"""The keys of a composition; every other key is a hyper-parameter."""


def algorithm(name: str | Mapping[str, Any] | Algorithm, **settings: Any) -> Algorithm:
    """Return an algorithm by name, with other hyper-parameters where given.

    ``name`` is one of :data:`ALGORITHMS`; or ``"package.module:NAME"``, an
    :class:`Algorithm` of somebody else's; or a mapping for :func:`compose` (as read from a
    config file), hyper-parameters included; or an algorithm itself.

    >>> algorithm("fedlada", lr=0.01, alpha=0.05)
    >>> algorithm({"local": "amsgrad", "corrections": ["amend", "prox"], "mu": 0.1})
    """
    if isinstance(name, Algorithm):
        chosen = name
    elif isinstance(name, Mapping):
        structure = {key: name[key] for key in STRUCTURE if key in name}
        chosen = compose(**structure)
        settings = {key: name[key] for key in name if key not in structure} | settings
    elif ":" in name:
        chosen = _outside_algorithm(name)
    else:
        require(name in ALGORITHMS, f"no algorithm {name!r}; {nearest(name, ALGORITHMS)}")
        chosen = ALGORITHMS[name]
    return chosen.replace(**settings) if settings else chosen


def compose(
    *, local: str = "sgd", corrections: Sequence[str] = (), server: str = "averaging"
) -> Algorithm:
    """Put any local rule into any corrections (outermost first) under any server rule."""
    part: Part = _choose(local, LOCAL_RULES, "local rule", LocalRule)()  # type: ignore[call-arg]
    for correction in reversed(corrections):
        part = _choose(correction, CORRECTIONS, "correction", Correction)(part)
    return Algorithm(part, server=_choose(server, SERVER_RULES, "server rule", Averaging)())


def spec(chosen: Algorithm) -> dict[str, Any]:
    """Return the mapping that :func:`algorithm` turns into the same algorithm."""
    *corrections, local = chosen.part.chain()
    structure = {
        "local": _word(local, LOCAL_RULES),
        "corrections": [_word(part, CORRECTIONS) for part in corrections],
        "server": _word(chosen.server, SERVER_RULES),
    }
    settings = chosen.settings()
    for owner in (*corrections, local, chosen.server):
        for key, value in settings.items():
            require(
                getattr(owner, key, value) == value,
                f"two parts of the algorithm share the setting {key!r} and differ in it, so it"
                " cannot be written down; rename the setting of one of them",
            )
    plain = {k: list(v) if isinstance(v, tuple) else v for k, v in settings.items()}
    return structure | plain


def outside_names(encoded: str | Mapping[str, Any]) -> list[str]:
    """List the ``package.module:Name`` paths that an encoded algorithm imports."""
    if isinstance(encoded, str):
        words = [encoded]
    else:
        words = [encoded.get("local", ""), *encoded.get("corrections", ())]
        words.append(encoded.get("server", ""))
    return [word for word in words if isinstance(word, str) and ":" in word]


def find(path: str, what: str) -> object:
    """Import what ``package.module:NAME`` names."""
    module_name, _, attribute = path.partition(":")
    try:
        return getattr(importlib.import_module(module_name), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise FedladaError(
            f"{path!r} leads to no {what} ({error}); write it as 'package.module:NAME', where NAME"
            f" is the {what} in a module that Python can import"
        ) from error


def _choose(name: str, table: Mapping[str, type[T]], kind: str, base: type[T]) -> type[T]:
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


def _word(owner: object, table: Mapping[str, type]) -> str:
    kind = type(owner)
    words = [word for word, known in table.items() if known is kind]
    return words[0] if words else f"{kind.__module__}:{kind.__qualname__}"


def _outside_algorithm(path: str) -> Algorithm:
    outside = find(path, "algorithm")
    require(
        isinstance(outside, Algorithm),
        f"{path!r} is a {type(outside).__name__}; it must be an Algorithm, for example"
        " NAME = Algorithm(Amend(SGD(), alpha=0.2))",
    )
    assert isinstance(outside, Algorithm)
    return outside
