"""Checkpoints: the server's state on disk, so that a killed run continues with the same result.

A checkpoint is two files.  Each is written under a temporary name and renamed when it is complete
and on the disk: first the vectors as ``round-00000012.safetensors``, then the manifest
``round-00000012.json`` with the hash of the vectors file, its own hash and all other values.  A
vectors file without a manifest is ignored.  A checkpoint whose hashes do not match is skipped with
a warning, and the one before it is used.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import platform
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from ..algorithms import Vector, Vectors
from ..atomic import write
from ..errors import FedladaError, missing_extra, require
from ..protocol.federated import kind_of
from .fingerprint import Plain, differences, fingerprint
from .lock import DirectoryInUse, DirectoryLock
from .record import RoundRecord
from .state import ServerState
from .upgrade import FORMAT, upgraded

__all__ = ["Checkpoint", "CheckpointError", "Checkpoints", "Names", "safetensors"]

Names = Mapping[str, list[str]]
"""The names of the tensors of a vector: ``parameters`` and ``buffers``."""


class CheckpointError(FedladaError):
    """A checkpoint cannot be written, read or used."""


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

    def model(self) -> dict[str, Tensor]:
        """Return the federated parameters and averaged buffers by their ``state_dict`` names."""
        s = self.state.vectors
        found = dict(zip(self.names["parameters"], s.x, strict=True))
        if "buffers" in s:
            found |= dict(zip(self.names["buffers"], s.buffers, strict=True))
        return found

    def check(self, config: Mapping[str, Plain]) -> None:
        """Raise an error that names the differences unless ``config`` is what was saved."""
        changed = differences(config, self.config)
        if changed:
            raise CheckpointError(
                f"this run is not the one that was saved: {'; '.join(changed[:5])}"
                f"{'; ...' if len(changed) > 5 else ''}. Go back to what was saved, or give"
                " another directory to start anew"
            )
        now = _versions()
        other = [
            f"{n} {v} then, {now.get(n)} now" for n, v in self.versions.items() if v != now.get(n)
        ]
        if other:
            warnings.warn(
                f"saved by other versions ({'; '.join(other)}): bits may differ", stacklevel=3
            )


class Checkpoints:
    """A directory of checkpoints of one run."""

    def __init__(
        self, directory: str | Path, *, every: int = 1, keep: int = 2, wait: float = 0.0
    ) -> None:
        """Save after every ``every`` rounds and keep the last ``keep`` checkpoints.

        Wait up to ``wait`` seconds for another process that still holds the directory.
        """
        require(every >= 1, f"every is {every}; it must be at least 1")
        require(keep >= 1, f"keep is {keep}; it must be at least 1")
        self.directory = Path(directory)
        self.every, self.keep = every, keep
        self._lock = DirectoryLock(self.directory, wait=wait)

    @property
    def clients(self) -> Path:
        """The directory where the clients of an in-process run keep their vectors."""
        return self.directory / "clients"

    def rounds(self) -> list[int]:
        """Return the rounds that have a checkpoint, in increasing order."""
        return sorted(
            int(path.stem.partition("-")[2]) for path in self.directory.glob("round-*.json")
        )

    def open(self) -> None:
        """Make the directory and lock it, so that no other run can save there."""
        try:
            self._lock.take()
        except DirectoryInUse as error:
            raise CheckpointError(str(error)) from None

    def close(self) -> None:
        """Release the directory for another run."""
        self._lock.release()

    def save(
        self, state: ServerState, record: RoundRecord, *, config: Mapping[str, Plain], names: Names
    ) -> int:
        """Write a checkpoint, delete old ones and return the earliest round that is left."""
        if not self._lock.taken:
            raise CheckpointError(
                f"this run no longer has {self.directory}: it was closed, or another run of this"
                " process has taken the directory over; go on with that one"
            )
        content = _serialised(state, names)
        manifest = {
            "format": FORMAT,
            "round": state.round,
            "updates": state.updates,
            "run": state.run,
            "last_accepted": list(state.last_accepted.items()),
            "history": state.history,
            "record": dataclasses.asdict(record),
            "config": config,
            "fingerprint": fingerprint(config),
            "versions": _versions(),
            "names": names,
            "vectors": list(state.vectors),
            "sha256": hashlib.sha256(content).hexdigest(),
        }
        vectors, text = self._paths(state.round)
        try:
            write(vectors, content)
            write(text, _sealed(manifest))
        except OSError as error:
            there = self.rounds()
            raise CheckpointError(
                f"the checkpoint of round {state.round} could not be written to {self.directory}"
                f" ({error.strerror}). "
                + (
                    f"The one of round {there[-1]} is whole: make room and"
                    if there
                    else "Make room and"
                )
                + " run the same again"
            ) from error
        self._prune()
        return self.rounds()[0]

    def latest(self) -> Checkpoint | None:
        """Return the newest undamaged checkpoint, or None if there are no checkpoints."""
        there = self.rounds()
        if there:
            safetensors()  # a missing library must not count as a damaged checkpoint
        for round in reversed(there):
            try:
                return self._load(round, oldest=there[0])
            except (OSError, ValueError, KeyError, TypeError) as error:
                warnings.warn(
                    f"the checkpoint of round {round} in {self.directory} is damaged ({error});"
                    " trying the one before",
                    stacklevel=2,
                )
        if there:
            raise CheckpointError(
                f"no checkpoint in {self.directory} is whole; restore one, or delete the directory"
                " to start anew"
            )
        return None

    def _load(self, round: int, oldest: int) -> Checkpoint:
        vectors, text = self._paths(round)
        manifest = upgraded(_unsealed(text.read_bytes()))
        require(manifest["format"] == FORMAT, f"its format is {manifest['format']}, not {FORMAT}")
        content = vectors.read_bytes()
        require(
            hashlib.sha256(content).hexdigest() == manifest["sha256"],
            f"{vectors.name} is not what was written",
        )
        tensors = safetensors().load(content)
        names: Names = manifest["names"]
        state = ServerState(
            Vectors(
                (name, Vector(tensors[f"{name}/{part}"] for part in names[kind_of(name)]))
                for name in manifest["vectors"]
            ),
            round=manifest["round"],
            updates=manifest["updates"],
            run=manifest["run"],
            last_accepted=dict(manifest["last_accepted"]),
            history={name: [tuple(r) for r in rs] for name, rs in manifest["history"].items()},
            resumable_from=oldest,
        )
        record = manifest["record"]
        return Checkpoint(
            state=state,
            record=RoundRecord(**{**record, "cohort": tuple(record["cohort"])}),
            config=manifest["config"],
            versions=manifest["versions"],
            names=names,
            random=tensors["random"],
        )

    def _paths(self, round: int) -> tuple[Path, Path]:
        stem = self.directory / f"round-{round:08}"
        return stem.with_suffix(".safetensors"), stem.with_suffix(".json")

    def _prune(self) -> None:
        """Delete manifests before vectors: a vectors file without a manifest is ignored."""
        rounds = self.rounds()
        for round in rounds[: -self.keep]:
            self._paths(round)[1].unlink()
        wanted = {self._paths(round)[0] for round in rounds[-self.keep :]}
        for path in [*self.directory.glob("round-*.safetensors"), *self.directory.glob("*.part")]:
            if path not in wanted:
                path.unlink()


def _serialised(state: ServerState, names: Names) -> bytes:
    tensors = {"random": torch.get_rng_state()}
    for name, vector in state.vectors.items():
        for part, t in zip(names[kind_of(name)], vector, strict=True):
            tensors[f"{name}/{part}"] = t.detach().cpu().contiguous()
    content: bytes = safetensors().save(tensors)
    return content


def _sealed(manifest: Mapping[str, Any]) -> bytes:
    """Return a manifest with its own hash, as JSON."""
    return json.dumps({"manifest": manifest, "sha256": _hash(manifest)}, indent=1).encode()


def _unsealed(content: bytes) -> dict[str, Any]:
    sealed = json.loads(content)
    manifest: dict[str, Any] = sealed["manifest"]
    require(_hash(manifest) == sealed["sha256"], "its manifest is not what was written")
    return manifest


def _hash(manifest: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in ("fedlada", "torch", "flwr"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def safetensors() -> ModuleType:
    """Return the library's torch module, or raise an error that says what to install."""
    try:
        import safetensors.torch as torch_part
    except ModuleNotFoundError as error:
        raise missing_extra(error, "a checkpoint", "fedlada[checkpoint]") from None
    return torch_part
