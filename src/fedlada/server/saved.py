"""What a checkpoint holds, and whether a run may go on from it."""

from __future__ import annotations

import platform
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from torch import Tensor

from ..errors import FedladaError
from .fingerprint import Plain, differences
from .record import RoundRecord
from .state import ServerState
from .upgrade import FORMAT, as_saved

__all__ = ["Checkpoint", "CheckpointError", "Names", "NewerFormat", "versions"]

Names = Mapping[str, list[str]]
"""The names of the tensors of a vector: ``parameters`` and ``buffers``."""


class CheckpointError(FedladaError):
    """A checkpoint cannot be written, read or used."""


class NewerFormat(CheckpointError):
    """A checkpoint was written by a later version of this package."""

    def __init__(self, path: Path, format: int) -> None:
        super().__init__(
            f"{path} was written by a newer fedlada (its format is {format}, and this version"
            f" reads formats up to {FORMAT}); update with pip install --upgrade fedlada"
        )


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """The saved state of a run after a round."""

    state: ServerState
    record: RoundRecord
    """The record of that round."""
    config: Mapping[str, Plain]
    versions: Mapping[str, str]
    names: Names
    random: Tensor
    """Torch's random state, for random numbers drawn outside of clients."""
    format: int = FORMAT
    """The format in which it was written."""

    def model(self) -> dict[str, Tensor]:
        """Return the federated parameters and averaged buffers by their ``state_dict`` names."""
        s = self.state.vectors
        found = dict(zip(self.names["parameters"], s.x, strict=True))
        if "buffers" in s:
            found |= dict(zip(self.names["buffers"], s.buffers, strict=True))
        return found

    def check(self, config: Mapping[str, Plain]) -> None:
        """Raise an error that names the differences unless ``config`` is what was saved."""
        changed = differences(as_saved(config, self.config, self.format), self.config)
        if changed:
            raise CheckpointError(
                f"this run is not the one that was saved: {'; '.join(changed[:5])}"
                f"{'; ...' if len(changed) > 5 else ''}. Go back to what was saved, or give"
                " another directory to start anew"
            )
        now = versions()
        other = [
            f"{n} {v} then, {now.get(n)} now" for n, v in self.versions.items() if v != now.get(n)
        ]
        if other:
            warnings.warn(
                f"saved by other versions ({'; '.join(other)}): bits may differ", stacklevel=3
            )


def versions() -> dict[str, str]:
    """Return the versions of what decides the bits of a run."""
    found = {"python": platform.python_version()}
    for package in ("fedlada", "torch", "flwr"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
