"""Run a whole Flower federation on this machine's loopback, for tests and first tries."""

from .deployment import Deployment
from .processes import DeploymentError
from .ray_simulation import RaySimulation
from .run import CONNECTION, Run, Value

__all__ = ["CONNECTION", "Deployment", "DeploymentError", "RaySimulation", "Run", "Value"]
