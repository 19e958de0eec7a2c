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
import os
import platform
import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from .algorithms import Vector, Vectors, require
from .federation import ServerState
from .files import write
from .fingerprint import Plain, differences, fingerprint
from .rounds import RoundRecord

__all__ = ["Checkpoint", "CheckpointError", "Checkpoints", "Names", "safetensors"]

FORMAT = 1

Names = Mapping[str, list[str]]
"""The names of the tensors of a vector: ``parameters`` and ``buffers``."""

_LOCKS: dict[Path, int] = {}
"""The lock of each directory this process runs in; the system lets go when the process ends."""


class CheckpointError(Exception):
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
        self.every, self.keep, self._wait = every, keep, wait

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
        """Make the directory and take it: no other process may run there."""
        place = self.directory.resolve()
        place.mkdir(parents=True, exist_ok=True)
        if place in _LOCKS:
            return
        import fcntl

        lock = os.open(place / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        end = time.monotonic() + self._wait
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError:
                if time.monotonic() > end:
                    os.close(lock)
                    raise CheckpointError(
                        f"another process is running in {self.directory}; wait for it, stop it,"
                        " or take another directory"
                    ) from None
            time.sleep(0.1)
        _LOCKS[place] = lock

    def close(self) -> None:
        """Let go of the directory, for another process."""
        os.close(_LOCKS.pop(self.directory.resolve()))

    def save(
        self, state: ServerState, record: RoundRecord, *, config: Mapping[str, Plain], names: Names
    ) -> None:
        """Write a checkpoint and forget the oldest; ``state.epoch`` moves up with them."""
        content = _serialised(state, names)
        manifest = {
            "format": FORMAT,
            "round": state.round,
            "updates": state.updates,
            "run": state.run,
            "last": list(state.last.items()),
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
        state.epoch = self.rounds()[0]

    def latest(self) -> Checkpoint | None:
        """The newest checkpoint that is whole; None if there is none at all."""
        there = self.rounds()
        for round in reversed(there):
            try:
                return self._load(round, oldest=there[0])
            except (OSError, ValueError, KeyError, TypeError) as error:
                warnings.warn(
                    f"the checkpoint of round {round} in {self.directory} is damaged ({error});"
                    " trying the one before",
                    stacklevel=2,
                )
        require(
            not there,
            f"no checkpoint in {self.directory} is whole; restore one, or delete the directory to"
            " start anew",
        )
        return None

    def _load(self, round: int, oldest: int) -> Checkpoint:
        vectors, text = self._paths(round)
        manifest = _unsealed(text.read_bytes())
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
                (name, Vector(tensors[f"{name}/{part}"] for part in names[_kind(name)]))
                for name in manifest["vectors"]
            ),
            round=manifest["round"],
            updates=manifest["updates"],
            run=manifest["run"],
            last=dict(manifest["last"]),
            history={name: [tuple(r) for r in rs] for name, rs in manifest["history"].items()},
            epoch=oldest,
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
        """Manifests first: vectors without one are nobody's."""
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
        for part, t in zip(names[_kind(name)], vector, strict=True):
            tensors[f"{name}/{part}"] = t.detach().cpu().contiguous()
    content: bytes = safetensors().save(tensors)
    return content


def _kind(vector: str) -> str:
    return "buffers" if vector == "buffers" else "parameters"


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
    except ModuleNotFoundError:
        raise CheckpointError(
            "checkpoints are written as safetensors, which is not installed; install"
            " fedlada[checkpoint]"
        ) from None
    return torch_part
