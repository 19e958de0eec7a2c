"""fedlada on Flower: the same algorithms in Flower simulation and on real nodes."""

from importlib import import_module
from typing import TYPE_CHECKING

from ..errors import missing_extra

if TYPE_CHECKING:
    from .client import answer_query, client_app, evaluating, training
    from .server import Finished, ServerConfig, run_server, server_app
    from .tree.leaf import leaf_app
    from .warm.app import warm_app

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
    "warm_app",
]


_HOMES = {
    ".client": ("answer_query", "client_app", "evaluating", "training"),
    ".tree.leaf": ("leaf_app",),
    ".server": ("Finished", "ServerConfig", "run_server", "server_app"),
    ".warm.app": ("warm_app",),
}


def __getattr__(name: str) -> object:
    """Import a public name when it is asked for: a warm ClientApp needs no torch."""
    for home, names in _HOMES.items():
        if name in names:
            try:
                return getattr(import_module(home, __name__), name)
            except ModuleNotFoundError as error:
                if error.name != "flwr":
                    raise
                raise missing_extra(error, "fedlada.flower", "fedlada[flower]") from error
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
