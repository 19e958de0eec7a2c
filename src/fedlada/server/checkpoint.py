"""Checkpoints: the server's state on disk, so that a run that was killed goes on as if it was not.

A checkpoint is two files, each written beside its place and moved there when it is whole and on
the disk: the vectors as ``round-00000012.safetensors``, then ``round-00000012.json``, which has
the hash of the first, its own hash, and all else.  A checkpoint without its manifest does not
exist; one whose hashes do not fit is passed over, with a warning, for the one before.
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
    """A run as it was after a round."""

    state: ServerState
    record: RoundRecord
    """What came of that round."""
    config: Mapping[str, Plain]
    versions: Mapping[str, str]
    names: Names
    random: Tensor
    """Torch's random state, for what is drawn outside of clients."""

    def model(self) -> dict[str, Tensor]:
        """The federated parameters, and averaged buffers, by their ``state_dict`` names."""
        s = self.state.vectors
        found = dict(zip(self.names["parameters"], s.x, strict=True))
        if "buffers" in s:
            found |= dict(zip(self.names["buffers"], s.buffers, strict=True))
        return found

    def check(self, config: Mapping[str, Plain]) -> None:
        """Raise, saying where, unless this is the configuration of the run."""
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
        """Save after each ``every`` rounds, and keep the last ``keep`` checkpoints.

        ``wait`` so many seconds for another process that is still ending there.
        """
        require(every >= 1, f"every is {every}; it must be at least 1")
        require(keep >= 1, f"keep is {keep}; it must be at least 1")
        self.directory = Path(directory)
        self.every, self.keep = every, keep
        self._lock = DirectoryLock(self.directory, wait=wait)

    @property
    def clients(self) -> Path:
        """Where the clients of an in-process run keep their vectors."""
        return self.directory / "clients"

    def rounds(self) -> list[int]:
        """The rounds of the checkpoints that are there."""
        return sorted(
            int(path.stem.partition("-")[2]) for path in self.directory.glob("round-*.json")
        )

    def open(self) -> None:
        """Make the directory and take it: no other run may save there."""
        try:
            self._lock.take()
        except DirectoryInUse as error:
            raise CheckpointError(str(error)) from None

    def close(self) -> None:
        """Let go of the directory, for another run."""
        self._lock.release()

    def save(
        self, state: ServerState, record: RoundRecord, *, config: Mapping[str, Plain], names: Names
    ) -> int:
        """Write a checkpoint and forget the oldest; return the earliest round that is left."""
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
        """The newest checkpoint that is whole; None if there is none at all."""
        there = self.rounds()
        if there:
            safetensors()  # what is missing is the library, and no checkpoint is damaged
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
    """A manifest with its own hash."""
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
    """The library's part for torch, or one sentence on what to install."""
    try:
        import safetensors.torch as torch_part
    except ModuleNotFoundError as error:
        raise missing_extra(error, "a checkpoint", "fedlada[checkpoint]") from None
    return torch_part
