"""fedlada on Flower: the same algorithms in Flower simulation and on real nodes."""

try:
    import flwr  # noqa: F401
except ModuleNotFoundError as error:
    raise ImportError(
        'fedlada.flower needs flwr, which is not installed: run pip install "fedlada[flower]".',
        name=error.name,
    ) from error

from .client_app import answer_query, client_app, training
from .server_app import ServerConfig, run_server, server_app

__all__ = [
    "ServerConfig",
    "answer_query",
    "client_app",
    "run_server",
    "server_app",
    "training",
]
