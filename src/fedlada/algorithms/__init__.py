"""The ingredients of federated optimizers, each with client and server half; torch only."""

from .ada2 import UnsharedAdam
from .adam import Adam, AMSGrad
from .adamw import AdamW
from .adamw_rows import AdamWRows
from .amend import Amend
from .amend_added import AmendAdded
from .ams import ServerAMSGrad
from .composition import Algorithm, Traffic, rebuild
from .dyn import Dyn
from .exp import ExP
from .ingredients import CORRECTIONS, LOCAL_RULES, SERVER_RULES
from .lalr import SharedAMSGrad
from .lesam import LESAM
from .lion import Lion
from .muon import Muon
from .nesterov import Nesterov
from .nova import Nova
from .part import Correction, LocalRule, Moment, Part, Round
from .prox import Prox
from .registry import ALGORITHMS, CATALOGUE, algorithm, compose
from .rows import AMSGradRows
from .sam import SAM
from .scaffold import Scaffold
from .server import Adagrad, AdaptiveServer, Averaging, Momentum, ServerAdam, Yogi
from .sgd import SGD
from .vectors import Vector, Vectors

__all__ = [
    "ALGORITHMS",
    "CATALOGUE",
    "CORRECTIONS",
    "LESAM",
    "LOCAL_RULES",
    "SAM",
    "SERVER_RULES",
    "SGD",
    "AMSGrad",
    "AMSGradRows",
    "Adagrad",
    "Adam",
    "AdamW",
    "AdamWRows",
    "AdaptiveServer",
    "Algorithm",
    "Amend",
    "AmendAdded",
    "Averaging",
    "Correction",
    "Dyn",
    "ExP",
    "Lion",
    "LocalRule",
    "Moment",
    "Momentum",
    "Muon",
    "Nesterov",
    "Nova",
    "Part",
    "Prox",
    "Round",
    "Scaffold",
    "ServerAMSGrad",
    "ServerAdam",
    "SharedAMSGrad",
    "Traffic",
    "UnsharedAdam",
    "Vector",
    "Vectors",
    "Yogi",
    "algorithm",
    "compose",
    "rebuild",
]
