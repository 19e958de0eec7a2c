"""The ingredients of federated optimizers, each with client and server half; torch only.

``local``, ``corrections`` and ``server_rules`` have the ingredients: any local rule, in any
corrections, under any server rule, is an algorithm.
"""

from .composition import Algorithm, Traffic, rebuild
from .corrections import CORRECTIONS
from .local import LOCAL_RULES
from .part import Correction, LocalRule, Moment, Part, Round
from .registry import ALGORITHMS, CATALOGUE, algorithm, compose
from .server_rules import SERVER_RULES
from .vectors import Vector, Vectors

__all__ = [
    "ALGORITHMS",
    "CATALOGUE",
    "CORRECTIONS",
    "LOCAL_RULES",
    "SERVER_RULES",
    "Algorithm",
    "Correction",
    "LocalRule",
    "Moment",
    "Part",
    "Round",
    "Traffic",
    "Vector",
    "Vectors",
    "algorithm",
    "compose",
    "rebuild",
]
