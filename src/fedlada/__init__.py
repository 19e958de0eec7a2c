"""Federated optimizers, written once: FedLADA, its baselines and everything between them."""

from .aggregation import Mean
from .algorithms import ALGORITHMS, Algorithm, algorithm, compose
from .client import LocalRound
from .federation import RoundRecord, ServerState, federate
from .local import InProcess
from .optimizer import FederatedOptimizer
from .protocol import Engine, Failure, Reply, Task
from .sampling import Bernoulli, FixedSize
from .simulation import Simulation, simulate
from .store import DiskStore, MemoryStore
from .training import Evaluation, LocalTraining

__version__ = "0.1.0"

__all__ = [
    "ALGORITHMS",
    "Algorithm",
    "Bernoulli",
    "DiskStore",
    "Engine",
    "Evaluation",
    "Failure",
    "FederatedOptimizer",
    "FixedSize",
    "InProcess",
    "LocalRound",
    "LocalTraining",
    "Mean",
    "MemoryStore",
    "Reply",
    "RoundRecord",
    "ServerState",
    "Simulation",
    "Task",
    "__version__",
    "algorithm",
    "compose",
    "federate",
    "simulate",
]
