"""Federated optimizers, written once: FedLADA, its baselines and everything between them."""

from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.3.0.dev0"

if TYPE_CHECKING:
    from .public import *  # noqa: F403


def __getattr__(name: str) -> object:
    """Import the public names, and with them torch, when the first of them is asked for."""
    if name == "__all__" or not name.startswith("__"):
        public = import_module(".public", __name__)
        globals().update({each: getattr(public, each) for each in ("__all__", *public.__all__)})
        if name in globals():  # also a submodule, now that it is imported
            return globals()[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *import_module(".public", __name__).__all__})
