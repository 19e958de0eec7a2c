"""Federated optimizers for PyTorch: FedLADA, its baselines, and every composition of them."""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING

__version__ = "0.4.0"

if TYPE_CHECKING:
    from .public import *  # noqa: F403


def __getattr__(name: str) -> object:
    """Import a submodule, or the public names, and with them torch, when one is asked for."""
    if not name.startswith("_") and find_spec(f".{name}", __name__) is not None:
        return import_module(f".{name}", __name__)
    if name == "__all__" or not name.startswith("__"):
        public = import_module(".public", __name__)
        globals().update({each: getattr(public, each) for each in ("__all__", *public.__all__)})
        if name in globals():
            return globals()[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *import_module(".public", __name__).__all__})
