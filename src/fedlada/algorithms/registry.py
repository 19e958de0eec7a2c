"""The named algorithms, one line each, and functions that build any other composition.

:mod:`.ingredients` has the names of their ingredients.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import nearest, require
from .adam import Adam, AMSGrad
from .amend import Amend
from .composition import Algorithm
from .dyn import Dyn
from .ingredients import CORRECTIONS, LOCAL_RULES, SERVER_RULES, choose, find
from .part import Correction, LocalRule, Part
from .prox import Prox
from .rows import AMSGradRows
from .scaffold import Scaffold
from .server import Adagrad, Averaging, Momentum, ServerAdam, Yogi
from .sgd import SGD

__all__ = ["ALGORITHMS", "algorithm", "compose", "outside_names"]

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
    "fedlada-rows": Algorithm(Amend(AMSGradRows())),
}

STRUCTURE = ("local", "corrections", "server")
"""The keys of a composition; every other key is a hyper-parameter."""


def algorithm(name: str | Mapping[str, Any] | Algorithm, **settings: Any) -> Algorithm:
    """Return an algorithm by name, with other hyper-parameters where given.

    ``name`` is one of :data:`ALGORITHMS`; or ``"package.module:NAME"``, an
    :class:`Algorithm` in another package; or a mapping for :func:`compose` (as read from a
    config file), which may include hyper-parameters; or an algorithm itself.

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
    """Return an algorithm of a local rule, corrections (outermost first) and a server rule."""
    part: Part = choose(local, LOCAL_RULES, "local rule", LocalRule)()  # type: ignore[call-arg]
    for correction in reversed(corrections):
        part = choose(correction, CORRECTIONS, "correction", Correction)(part)
    return Algorithm(part, server=choose(server, SERVER_RULES, "server rule", Averaging)())


def outside_names(encoded: str | Mapping[str, Any]) -> list[str]:
    """List the ``package.module:Name`` paths that an encoded algorithm imports."""
    if isinstance(encoded, str):
        words = [encoded]
    else:
        words = [encoded.get("local", ""), *encoded.get("corrections", ())]
        words.append(encoded.get("server", ""))
    return [word for word in words if isinstance(word, str) and ":" in word]


def _outside_algorithm(path: str) -> Algorithm:
    outside = find(path, "algorithm")
    require(
        isinstance(outside, Algorithm),
        f"{path!r} is a {type(outside).__name__}; it must be an Algorithm, for example"
        " NAME = Algorithm(Amend(SGD(), alpha=0.2))",
    )
    assert isinstance(outside, Algorithm)
    return outside
