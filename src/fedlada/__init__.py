"""Federated optimizers, written once: FedLADA, its baselines and everything between them."""

from .aggregation import Mean
from .algorithms import ALGORITHMS, Algorithm, algorithm, compose
from .checkpoint import Checkpoint, CheckpointError, Checkpoints
from .client import LocalRound
from .export import export
from .federation import ServerState, federate
from .guard import Guard
from .local import InProcess
from .optimizer import FederatedOptimizer
from .protocol import Engine, Failure, Rejection, Reply, Task
from .rounds import RoundRecord
from .sampling import Bernoulli, FixedSize
from .simulation import Simulation, simulate
from .store import DiskStore, MemoryStore
from .training import Evaluation, LocalTraining

__version__ = "0.2.0"

__all__ = [
    "ALGORITHMS",
    "Algorithm",
    "Bernoulli",
    "Checkpoint",
    "CheckpointError",
    "Checkpoints",
    "DiskStore",
    "Engine",
    "Evaluation",
    "Failure",
    "FederatedOptimizer",
    "FixedSize",
    "Guard",
    "InProcess",
    "LocalRound",
    "LocalTraining",
    "Mean",
    "MemoryStore",
    "Rejection",
    "Reply",
    "RoundRecord",
    "ServerState",
    "Simulation",
    "Task",
    "__version__",
    "algorithm",
    "compose",
    "export",
    "federate",
    "simulate",
]
