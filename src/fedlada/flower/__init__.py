"""fedlada on Flower: the same algorithms in Flower simulation and on real nodes."""

from ..errors import missing_extra

try:
    import flwr  # noqa: F401
except ModuleNotFoundError as error:
    raise missing_extra(error, "fedlada.flower", "fedlada[flower]") from error

from .client_app import answer_query, client_app, evaluating, training
from .leaf import leaf_app
from .server_app import Finished, ServerConfig, run_server, server_app

__all__ = [
    "Finished",
    "ServerConfig",
    "answer_query",
    "client_app",
    "evaluating",
    "leaf_app",
    "run_server",
    "server_app",
    "training",
]
