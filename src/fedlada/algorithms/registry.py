"""The named algorithms, an entry each, and functions that build any other composition."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ..errors import require, require_known
from ..named import choose, find
from .composition import Algorithm
from .corrections import CORRECTIONS, LESAM, SAM, Amend, AmendAdded, Dyn, Nova, Prox, Scaffold
from .local import (
    LOCAL_RULES,
    SGD,
    AdamW,
    AdamWRows,
    AMSGrad,
    AMSGradRows,
    CorrectedMuon,
    FreshAdamW,
    FreshMuon,
    KeptMuon,
    Lion,
    SharedAdam,
    SharedAMSGrad,
    SharedMuon,
    UnsharedAdam,
)
from .part import Correction, LocalRule, Part
from .server_rules import (
    SERVER_RULES,
    Adagrad,
    Averaging,
    ExP,
    Momentum,
    Nesterov,
    ServerAdam,
    ServerAMSGrad,
    Yogi,
)

__all__ = [
    "ALGORITHMS",
    "CATALOGUE",
    "FORMER",
    "Named",
    "algorithm",
    "compose",
    "outside_names",
    "title",
]


class Named(NamedTuple):
    """A named algorithm, and in short phrases what it is for and where it comes from."""

    algorithm: Algorithm
    purpose: str
    source: str
    deviates: str = ""
    """Where it differs from its source; the ingredients' pages have the reasons."""


K_STEPS = "gradient steps in place of an exact minimum"
MUON = "vectors are normalised (AdamW in the source)"

CATALOGUE: dict[str, dict[str, Named]] = {
    "averaging": {
        "fedavg": Named(
            Algorithm(SGD()),
            "The baseline: the mean of the clients' models.",
            "McMahan et al., 2017",
        ),
        "fednova": Named(
            Algorithm(Nova(SGD())),
            "For clients that take different numbers of steps.",
            "Wang et al., 2020",
            "for local SGD alone",
        ),
    },
    "momentum and adaptivity on the server": {
        "fedavgm": Named(
            Algorithm(SGD(), server=Momentum()),
            "Smooths the server's steps when cohorts differ from round to round.",
            "Hsu et al., 2019",
        ),
        "fedacg": Named(
            Algorithm(Prox(SGD(), mu=1e-3), server=Nesterov(momentum=0.85)),
            "Sends clients a model that is already ahead by the momentum, at FedAvg's bytes.",
            "Kim et al., 2024",
            "evaluates the model that it sends",
        ),
        "fedexp": Named(
            Algorithm(SGD(), server=ExP()),
            "Chooses the server's step size from how much the clients disagree.",
            "Jhunjhunwala et al., 2023",
            "evaluates the last model, not a mean of two",
        ),
        "fedadam": Named(
            Algorithm(SGD(), server=ServerAdam(server_lr=0.03, server_v0=1e-6)),
            "Adaptive server steps, for parameters of different scale such as embeddings.",
            "Reddi et al., 2021",
        ),
        "fedyogi": Named(
            Algorithm(SGD(), server=Yogi(server_lr=0.03, server_v0=1e-6)),
            "FedAdam whose second moment changes more slowly, for noisy cohorts.",
            "Reddi et al., 2021",
        ),
        "fedadagrad": Named(
            Algorithm(SGD(), server=Adagrad()),
            "FedAdam whose second moment never forgets, for sparse features.",
            "Reddi et al., 2021",
        ),
        "fedams": Named(
            Algorithm(SGD(), server=ServerAMSGrad()),
            "FedAdam whose second moment never falls, so that its steps cannot explode.",
            "Wang et al., 2022, option 1",
            "no compression (codecs do that)",
        ),
    },
    "corrections of client drift": {
        "fedprox": Named(
            Algorithm(Prox(SGD())),
            "Keeps clients near the server's model.",
            "Li et al., 2020",
            K_STEPS,
        ),
        "scaffold": Named(
            Algorithm(Scaffold(SGD())),
            "Removes drift with control variates, if clients return often and keep a vector.",
            "Karimireddy et al., 2020, option II",
            "with weight decay, c_i is the mean of the raw gradients",
        ),
        "scaffold-exp": Named(
            Algorithm(Scaffold(SGD()), server=ExP()),
            "SCAFFOLD whose server chooses its step size as FedExP's does.",
            "Jhunjhunwala et al., 2023",
            "as scaffold and fedexp",
        ),
        "feddyn": Named(
            Algorithm(Dyn(SGD())),
            "Removes drift at FedAvg's bytes, if clients return often and keep a vector.",
            "Acar et al., 2021",
            K_STEPS,
        ),
        "fedcm": Named(
            Algorithm(Amend(SGD())),
            "Removes drift without state on clients, by the previous round's direction.",
            "Xu et al., 2021",
            "weight decay is part of the gradient",
        ),
    },
    "adaptive clients": {
        "localadamw": Named(
            Algorithm(FreshAdamW()),
            "AdamW on clients, new in every round, at FedAvg's bytes.",
            "Liu et al., 2025 (as a baseline)",
        ),
        "localadam": Named(
            Algorithm(SharedAdam()),
            "Adam on clients that share its second moment.",
            "Sun et al., 2023, Algorithm 2",
            "v has a floor and no epsilon beside its root",
        ),
        "fedlalr": Named(
            Algorithm(SharedAMSGrad()),
            "AMSGrad on clients that share both of its moments.",
            "Sun et al., 2023 (2309.09719)",
            "v has a floor; weight decay",
        ),
        "fedada2": Named(
            Algorithm(
                UnsharedAdam(),
                server=ServerAdam(server_lr=1e-2, server_betas=(0.9, 0.999), server_v0=0.0),
            ),
            "Adaptive on both sides at FedAvg's bytes, since no moment is shared.",
            "Lee et al., 2024",
            "renews the preconditioner in every step; weight decay",
        ),
        "fedlion": Named(
            Algorithm(Lion()),
            "Steps along signs with a shared momentum; its delta has few distinct values.",
            "Tang and Chang, 2024",
            "a codec decides what is sent; beta2 is 0.99",
        ),
        "diloco": Named(
            Algorithm(AdamW(), server=Nesterov(server_lr=0.7)),
            "For few well-known clients that train long between rounds, as data centres do.",
            "Douillard et al., 2023",
            "absent workers keep their moments; other lr and weight decay",
        ),
    },
    "orthogonalised steps": {
        "sharedmuon": Named(
            Algorithm(SharedMuon()),
            "Muon on clients that share its momentum; FedMuon without amending.",
            "Liu et al., 2025, without its amending",
            MUON,
        ),
        "freshmuon": Named(
            Algorithm(FreshMuon()),
            "Muon at FedAvg's bytes; its momentum is new in every round.",
            "Liu et al., 2025 (Local Muon)",
            MUON,
        ),
        "keptmuon": Named(
            Algorithm(KeptMuon()),
            "Muon at FedAvg's bytes, if clients return often and keep a vector.",
            "Takezawa et al., 2025 (LocalMuon)",
            MUON,
        ),
        "fedmuon": Named(
            Algorithm(Amend(SharedMuon(), alpha=0.5)),
            "Muon with a shared momentum and the previous round's direction.",
            "Liu et al., 2025",
            f"{MUON}; no compression",
        ),
        "fedmuon-corrected": Named(
            Algorithm(CorrectedMuon()),
            "Muon without bias, if clients return often and keep a vector.",
            "Takezawa et al., 2025 (FedMuon)",
            f"{MUON}; weight decay",
        ),
        "muloco": Named(
            Algorithm(KeptMuon(), server=Nesterov(server_lr=0.7)),
            "DiLoCo whose workers take Muon's steps.",
            "Thérien et al., 2025",
            f"{MUON}; absent workers keep their momentum",
        ),
    },
    "adaptive and corrected": {
        "fedlada": Named(
            Algorithm(Amend(AMSGrad(lr=0.02, weight_decay=1e-3))),
            "By Sun et al.: AMSGrad on clients, mixed with the previous round's direction.",
            "Sun et al., 2023, Algorithm 3",
            "K steps; v_i starts at v; our lr and weight decay",
        ),
        "fedlada-paper": Named(
            Algorithm(Amend(AMSGrad(lr=1e-3, weight_decay=1e-2))),
            "FedLADA with the lr and the weight decay of its paper.",
            "Sun et al., 2023, Algorithm 3",
            "K steps; v_i starts at v",
        ),
        "fedlada-rows": Named(
            Algorithm(Amend(AMSGradRows(lr=0.02, weight_decay=1e-3))),
            "FedLADA with one second moment per row, at FedCM's bytes.",
            "this library",
        ),
        "fedadamw": Named(
            Algorithm(AmendAdded(AdamWRows())),
            "AdamW for fine-tuning transformers, with second moments shared by rows.",
            "Liu et al., 2025 (2510.27486)",
            "a block is a row; v starts at eps²",
        ),
    },
    "flat minima": {
        "fedsam": Named(
            Algorithm(SAM(SGD())),
            "Looks for flat minima, at the cost of two gradients per step.",
            "Qu et al., 2022",
        ),
        "mofedsam": Named(
            Algorithm(Amend(SAM(SGD()))),
            "FedSAM with FedCM's correction of drift.",
            "Qu et al., 2022",
            "weight decay is part of the gradient",
        ),
        "fedgamma": Named(
            Algorithm(Scaffold(SAM(SGD()))),
            "FedSAM with SCAFFOLD's correction of drift.",
            "Dai et al., 2023",
            "as scaffold",
        ),
        "fedlesam": Named(
            Algorithm(LESAM(SGD())),
            "Looks for flat minima of the federation's loss without extra gradients.",
            "Fan et al., 2024",
            "x_old starts at the first model received",
        ),
        "fedlesam-s": Named(
            Algorithm(LESAM(Scaffold(SGD()))),
            "FedLESAM with SCAFFOLD's correction of drift.",
            "Fan et al., 2024",
            "as fedlesam and scaffold",
        ),
        "fedlesam-d": Named(
            Algorithm(LESAM(Dyn(SGD()))),
            "FedLESAM with FedDyn's correction of drift.",
            "Fan et al., 2024",
            "as fedlesam and feddyn",
        ),
    },
}
"""Every named algorithm by group."""

ALGORITHMS: dict[str, Algorithm] = {
    name: named.algorithm for group in CATALOGUE.values() for name, named in group.items()
}

FORMER: dict[str, str | dict[str, str | list[str]]] = {
    "localmuon": "sharedmuon",
    "localamsgrad": {"local": "amsgrad"},
    "fedadam-amended": {"local": "sgd", "corrections": ["amend"], "server": "adam"},
    "fadamgc": {"local": "amsgrad", "corrections": ["scaffold"]},
}
"""The present names of algorithms that 0.3.0 called otherwise; old records have the old ones."""

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
    elif name in FORMER:
        warnings.warn(
            f"the algorithm {name!r} is now {FORMER[name]!r}; write that: version 0.5 will not"
            " know the old name",
            DeprecationWarning,
            stacklevel=2,
        )
        return algorithm(FORMER[name], **settings)
    else:
        require_known(name, ALGORITHMS, f"no algorithm {name!r}")
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


def title(algorithm: Algorithm) -> str:
    """Return the name of the algorithm with these ingredients, or the ingredients."""
    composition = algorithm.composition
    same = [n for n, known in ALGORITHMS.items() if known.composition == composition]
    exact = (name for name in same if ALGORITHMS[name] == algorithm)
    return next(exact, next(iter(same), composition))


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
