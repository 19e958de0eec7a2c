"""What happens to a client's data: a ready training loop, its evaluation, and objectives."""

from .evaluation import Evaluation, LocalEvaluation
from .examples import ClientData
from .local import LocalTraining
from .objective import BINARY, CLASSIFICATION, REGRESSION, TEXT, Metric, Objective, Scale

__all__ = [
    "BINARY",
    "CLASSIFICATION",
    "REGRESSION",
    "TEXT",
    "ClientData",
    "Evaluation",
    "LocalEvaluation",
    "LocalTraining",
    "Metric",
    "Objective",
    "Scale",
]
