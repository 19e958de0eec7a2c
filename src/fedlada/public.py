"""The public names, all in one place; ``fedlada`` shows them as its own."""

from . import __version__
from .algorithms import ALGORITHMS, Algorithm, algorithm
from .client.errors import TrainingError
from .engines.client_evaluation import ClientEvaluation
from .errors import FedladaError
from .results.frame import frame
from .results.plot import plot
from .results.plot_clients import plot_clients
from .server.plan import Plan
from .server.record import RoundRecord
from .server.saving.checkpoint import Checkpoint, CheckpointError, Checkpoints
from .server.saving.export import export
from .simulation import Simulation, simulate
from .training.evaluation import Evaluation
from .training.local import LocalTraining

__all__ = [
    "ALGORITHMS",
    "Algorithm",
    "Checkpoint",
    "CheckpointError",
    "Checkpoints",
    "ClientEvaluation",
    "Evaluation",
    "FedladaError",
    "LocalTraining",
    "Plan",
    "RoundRecord",
    "Simulation",
    "TrainingError",
    "__version__",
    "algorithm",
    "export",
    "frame",
    "plot",
    "plot_clients",
    "simulate",
]
