"""The ingredients of federated optimizers, each with client and server half; torch only."""

from .adam import Adam, AMSGrad
from .amend import Amend
from .composition import Algorithm, Traffic, rebuild
from .dyn import Dyn
from .ingredients import CORRECTIONS, LOCAL_RULES, SERVER_RULES
from .part import Correction, LocalRule, Moment, Part, Round
from .prox import Prox
from .registry import ALGORITHMS, algorithm, compose
from .scaffold import Scaffold
from .server import Adagrad, AdaptiveServer, Averaging, Momentum, ServerAdam, Yogi
from .sgd import SGD
from .vectors import Vector, Vectors

__all__ = [
    "ALGORITHMS",
    "CORRECTIONS",
    "LOCAL_RULES",
    "SERVER_RULES",
    "SGD",
    "AMSGrad",
    "Adagrad",
    "Adam",
    "AdaptiveServer",
    "Algorithm",
    "Amend",
    "Averaging",
    "Correction",
    "Dyn",
    "LocalRule",
    "Moment",
    "Momentum",
    "Part",
    "Prox",
    "Round",
    "Scaffold",
    "ServerAdam",
    "Traffic",
    "Vector",
    "Vectors",
    "Yogi",
    "algorithm",
    "compose",
    "rebuild",
]
