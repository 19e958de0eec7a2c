"""The public names, all in one place; ``fedlada`` shows them as its own."""

from . import __version__
from .algorithms import ALGORITHMS, Algorithm, algorithm, compose
from .client.loop import TrainingError
from .client.objective import CLASSIFICATION, REGRESSION, TEXT, Metric, Objective
from .client.optimizer import FederatedOptimizer
from .client.round import LocalRound
from .client.scale import Scale
from .client.store import DiskStore, MemoryStore
from .client.training import Evaluation, LocalTraining
from .curves import plot
from .engines.in_process import InProcess
from .errors import FedladaError
from .frames import frame
from .protocol.engine import Engine
from .protocol.messages import Failure, Rejection, Reply, Task
from .server.checkpoint import Checkpoint, CheckpointError, Checkpoints
from .server.export import export
from .server.guard import Guard
from .server.loop import federate
from .server.mean import Mean
from .server.plan import Plan
from .server.record import RoundRecord
from .server.robust import CenteredClipping, CoordinateMedian, TrimmedMean
from .server.sampling import Bernoulli, FixedSize
from .server.state import ServerState
from .simulation import Simulation, simulate

__all__ = [
    "ALGORITHMS",
    "CLASSIFICATION",
    "REGRESSION",
    "TEXT",
    "Algorithm",
    "Bernoulli",
    "CenteredClipping",
    "Checkpoint",
    "CheckpointError",
    "Checkpoints",
    "CoordinateMedian",
    "DiskStore",
    "Engine",
    "Evaluation",
    "Failure",
    "FederatedOptimizer",
    "FedladaError",
    "FixedSize",
    "Guard",
    "InProcess",
    "LocalRound",
    "LocalTraining",
    "Mean",
    "MemoryStore",
    "Metric",
    "Objective",
    "Plan",
    "Rejection",
    "Reply",
    "RoundRecord",
    "Scale",
    "ServerState",
    "Simulation",
    "Task",
    "TrainingError",
    "TrimmedMean",
    "__version__",
    "algorithm",
    "compose",
    "export",
    "federate",
    "frame",
    "plot",
    "simulate",
]
