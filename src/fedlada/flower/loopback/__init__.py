"""Run a whole Flower federation on this machine's loopback, for tests and first tries."""

from ...errors import missing_extra

try:
    import flwr  # noqa: F401
except ModuleNotFoundError as error:
    raise missing_extra(error, "fedlada.flower", "fedlada[flower]") from error

from .deployment import Deployment, RaySimulation
from .processes import DeploymentError
from .run import CONNECTION, Run, Value

__all__ = ["CONNECTION", "Deployment", "DeploymentError", "RaySimulation", "Run", "Value"]
