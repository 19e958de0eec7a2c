"""The named algorithms, an entry each, and functions that build any other composition.

:mod:`.ingredients` has the names of their ingredients.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import nearest, require
from .ada2 import UnsharedAdam
from .adam import Adam, AMSGrad
from .adamw import AdamW
from .adamw_rows import AdamWRows
from .amend import Amend
from .amend_added import AmendAdded
from .ams import ServerAMSGrad
from .composition import Algorithm
from .dyn import Dyn
from .exp import ExP
from .ingredients import CORRECTIONS, LOCAL_RULES, SERVER_RULES, choose, find
from .lalr import SharedAMSGrad
from .lesam import LESAM
from .lion import Lion
from .muon import Muon
from .nesterov import Nesterov
from .nova import Nova
from .part import Correction, LocalRule, Part
from .prox import Prox
from .rows import AMSGradRows
from .sam import SAM
from .scaffold import Scaffold
from .server import Adagrad, Averaging, Momentum, ServerAdam, Yogi
from .sgd import SGD

__all__ = ["ALGORITHMS", "CATALOGUE", "algorithm", "compose", "outside_names"]

CATALOGUE: dict[str, dict[str, tuple[Algorithm, str]]] = {
    "averaging": {
        "fedavg": (Algorithm(SGD()), "The baseline that every other name is compared with."),
        "fednova": (Algorithm(Nova(SGD())), "For clients that take unlike numbers of steps."),
    },
    "momentum and adaptivity on the server": {
        "fedavgm": (
            Algorithm(SGD(), server=Momentum()),
            "Smooths the server's steps where cohorts differ from round to round.",
        ),
        "fedacg": (
            Algorithm(Prox(SGD(), mu=1e-3), server=Nesterov(momentum=0.85)),
            "Sends clients a model that is ahead by the momentum, at FedAvg's bytes.",
        ),
        "fedexp": (
            Algorithm(SGD(), server=ExP()),
            "Finds the server's step size by itself, from how far clients disagree.",
        ),
        "fedadam": (
            Algorithm(SGD(), server=ServerAdam()),
            "For coordinates of unlike scale, such as embeddings, with plain clients.",
        ),
        "fedyogi": (
            Algorithm(SGD(), server=Yogi()),
            "FedAdam whose second moment changes more slowly, for noisy cohorts.",
        ),
        "fedadagrad": (
            Algorithm(SGD(), server=Adagrad()),
            "FedAdam that never forgets, for sparse features.",
        ),
        "fedams": (
            Algorithm(SGD(), server=ServerAMSGrad()),
            "FedAdam whose second moment never falls, so that its steps cannot explode.",
        ),
    },
    "corrections of client drift": {
        "fedprox": (Algorithm(Prox(SGD())), "Keeps clients near the server's model."),
        "scaffold": (
            Algorithm(Scaffold(SGD())),
            "Removes drift by control variates, if clients return often and keep a vector.",
        ),
        "feddyn": (
            Algorithm(Dyn(SGD())),
            "Removes drift at FedAvg's bytes, if clients return often and keep a vector.",
        ),
        "fedcm": (
            Algorithm(Amend(SGD())),
            "Removes drift without any state on clients, by the federation's last direction.",
        ),
        "fedadam-amended": (
            Algorithm(Amend(SGD()), server=ServerAdam()),
            "FedCM under FedAdam's server, the paper's comparison.",
        ),
    },
    "adaptive clients": {
        "localadam": (Algorithm(Adam()), "Adam on clients that share its second moment."),
        "localamsgrad": (
            Algorithm(AMSGrad()),
            "AMSGrad on clients that share its second moment; FedLADA without amending.",
        ),
        "fedlalr": (
            Algorithm(SharedAMSGrad()),
            "AMSGrad on clients that share both of its moments.",
        ),
        "fedada2": (
            Algorithm(UnsharedAdam(), server=ServerAdam()),
            "Adaptive on both sides at FedAvg's bytes: nothing of it is shared.",
        ),
        "fedlion": (
            Algorithm(Lion()),
            "Steps along signs with a shared momentum; its delta is made of few integers.",
        ),
        "localmuon": (
            Algorithm(Muon()),
            "Orthogonalised steps with a shared momentum; FedMuon without amending.",
        ),
        "diloco": (
            Algorithm(AdamW(), server=Nesterov(server_lr=0.7)),
            "For few well-known clients that train long between rounds, as data centres do.",
        ),
    },
    "adaptive and corrected": {
        "fedlada": (
            Algorithm(Amend(AMSGrad())),
            "The library's own: adaptive clients that follow the federation's direction.",
        ),
        "fedlada-rows": (
            Algorithm(Amend(AMSGradRows())),
            "FedLADA with one second moment per row, at FedCM's bytes.",
        ),
        "fadamgc": (
            Algorithm(Scaffold(AMSGrad())),
            "SCAFFOLD's control variates inside AMSGrad's moments.",
        ),
        "fedadamw": (
            Algorithm(AmendAdded(AdamWRows())),
            "AdamW for fine-tuning transformers, with second moments shared by rows.",
        ),
        "fedmuon": (
            Algorithm(Amend(Muon(), alpha=0.5)),
            "Orthogonalised steps for models that are made of matrices.",
        ),
    },
    "flat minima": {
        "fedsam": (
            Algorithm(SAM(SGD())),
            "Looks for flat minima, for twice the gradients.",
        ),
        "mofedsam": (
            Algorithm(Amend(SAM(SGD()))),
            "FedSAM with FedCM's correction of drift.",
        ),
        "fedlesam": (
            Algorithm(LESAM(SGD())),
            "Looks for flat minima of the federation's loss, at no further gradient.",
        ),
    },
}
"""Every named algorithm with what it is for, by group."""

ALGORITHMS: dict[str, Algorithm] = {
    name: chosen for group in CATALOGUE.values() for name, (chosen, _) in group.items()
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
