"""Engines that connect the two halves without a network, and what an engine is written with."""

from ..client.optimizer import FederatedOptimizer
from ..client.round import LocalRound
from ..client.store import DiskStore, MemoryStore
from ..protocol.engine import Engine
from ..protocol.messages import Failure, Rejection, Reply, Task
from ..server.loop import federate
from ..server.state import ServerState
from .devices import Devices
from .in_process import InProcess

__all__ = [
    "Devices",
    "DiskStore",
    "Engine",
    "Failure",
    "FederatedOptimizer",
    "InProcess",
    "LocalRound",
    "MemoryStore",
    "Rejection",
    "Reply",
    "ServerState",
    "Task",
    "federate",
]
