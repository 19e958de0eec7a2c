"""Checkpoints: the server's state on disk, so that a killed run continues with the same result.

A checkpoint is two files.  Each is written under a temporary name and renamed when it is complete
and on the disk: first the vectors as ``round-00000012.safetensors``, then the manifest
``round-00000012.json`` with the hash of the vectors file, its own hash and all other values.  A
vectors file without a manifest is ignored.  What is kept about each client is in a file that grows
(:mod:`.ledger`), and the manifest has its length and hash.  A checkpoint whose hashes do not match
is skipped with a warning, and the one before it is used.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from ..algorithms import Vector, Vectors
from ..atomic import write
from ..errors import FedladaError, missing_extra, require
from ..protocol.federated import kind_of
from .fingerprint import Plain, fingerprint
from .ledger import LEDGER, NEVER, Ledger
from .lock import DirectoryInUse, DirectoryLock
from .record import RoundRecord
from .saved import Checkpoint, CheckpointError, Names, NewerFormat, versions
from .state import ServerState
from .upgrade import FORMAT, upgraded

__all__ = ["Checkpoint", "CheckpointError", "Checkpoints", "safetensors"]

MANIFEST = re.compile(r"round-(\d{8,})\.json")
OWN = re.compile(r"round-\d{8,}\.(safetensors|json\.part|safetensors\.part)")
"""Files that belong to a checkpoint or are left of one; others are not touched."""
DAMAGE = (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError)
"""The errors of a checkpoint that is not what was written."""


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
        self._ledger = Ledger(self.directory)

    @property
    def clients(self) -> Path:
        """The directory where the clients of an in-process run keep their vectors."""
        return self.directory / "clients"

    def rounds(self) -> list[int]:
        """Return the rounds that have a checkpoint, in increasing order."""
        names = (MANIFEST.fullmatch(path.name) for path in self.directory.glob("round-*.json"))
        return sorted(int(name[1]) for name in names if name is not None)

    def open(self) -> None:
        """Make the directory and lock it, so that no other run can save there."""
        try:
            self._lock.take()
        except DirectoryInUse as error:
            raise CheckpointError(str(error)) from None
        except OSError as error:
            raise CheckpointError(
                f"{self.directory} cannot be made or written ({error.strerror}); give another"
                " directory for checkpoints"
            ) from error

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
        vectors, text = self._paths(state.round)
        try:
            self._ledger.append(state)
            manifest = {
                "format": FORMAT,
                "round": state.round,
                "updates": state.updates,
                "run": state.run,
                "ledger": self._ledger.reference(),
                "metric_names": state.metric_names,
                "history": state.history,
                "record": dataclasses.asdict(record),
                "config": config,
                "fingerprint": fingerprint(config),
                "versions": versions(),
                "names": names,
                "vectors": list(state.vectors),
                "blake2b": hashlib.blake2b(content).hexdigest(),
            }
            write(vectors, content)
            write(text, _sealed(manifest))
        except OSError as error:
            raise self._not_written(state.round, error) from error
        self._prune()
        return self.rounds()[0]

    def _not_written(self, round: int, error: OSError) -> CheckpointError:
        if not self.directory.is_dir():
            return CheckpointError(
                f"{self.directory} is gone: it was deleted or moved while the run was using it, in"
                f" round {round}. Put it back and run the same again, or start anew in another"
                " directory"
            )
        there = self.rounds()
        whole = f"The one of round {there[-1]} is whole: make" if there else "Make"
        return CheckpointError(
            f"the checkpoint of round {round} could not be written to {self.directory}"
            f" ({error.strerror}). {whole} room and run the same again"
        )

    def latest(self) -> Checkpoint | None:
        """Return the newest undamaged checkpoint, or None if there are no checkpoints."""
        there, wrong = self.rounds(), {}
        self._ledger = Ledger(self.directory)
        if there:
            safetensors()  # a missing library must not count as a damaged checkpoint
        for round in reversed(there):
            try:
                return self._load(round, oldest=there[0])
            except NewerFormat:
                raise
            except DAMAGE as error:
                wrong[round] = str(error) or type(error).__name__
                before = "; trying the one before" if round != there[0] else ""
                warnings.warn(
                    f"the checkpoint of round {round} in {self.directory} is damaged"
                    f" ({wrong[round]}){before}",
                    stacklevel=2,
                )
        if there:
            told = "; ".join(f"round {round}: {reason}" for round, reason in wrong.items())
            raise CheckpointError(
                f"no checkpoint in {self.directory} is whole ({told}). Restore its files from a"
                " backup and run the same again; without one the rounds up to"
                f" {there[-1]} are lost: give another directory to start anew, and keep this one"
            )
        return None

    def _load(self, round: int, oldest: int) -> Checkpoint:
        vectors, text = self._paths(round)
        sealed = _unsealed(text.read_bytes())
        if sealed["format"] > FORMAT:
            raise NewerFormat(text, sealed["format"])
        manifest = upgraded(sealed)
        content = vectors.read_bytes()
        require(
            _fits(sealed, content),
            f"{vectors.name} is not what was written",
        )
        tensors = _tensors(content)
        names: Names = manifest["names"]
        ledger, entries = Ledger.read(self.directory, manifest["ledger"])
        # Until format 2 the rounds were in the manifest itself.
        last = {client: last for client, last, _ in entries} or dict(
            manifest.get("last_accepted", ())
        )
        contributed = {client: value for client, _, value in entries}
        state = ServerState(
            Vectors(
                (name, Vector(tensors[f"{name}/{part}"] for part in names[kind_of(name)]))
                for name in manifest["vectors"]
            ),
            round=manifest["round"],
            updates=manifest["updates"],
            run=manifest["run"],
            last_accepted={client: last for client, last in last.items() if last != NEVER},
            contributed={client: value for client, value in contributed.items() if value},
            metric_names=list(manifest.get("metric_names", ())),
            history={name: [tuple(r) for r in rs] for name, rs in manifest["history"].items()},
            resumable_from=oldest,
        )
        record = manifest["record"]
        found = Checkpoint(
            state=state,
            record=RoundRecord(**{**record, "cohort": tuple(record["cohort"])}),
            config=manifest["config"],
            versions=manifest["versions"],
            names=names,
            random=tensors["random"],
            format=sealed["format"],
        )
        self._ledger = ledger
        return found

    def _paths(self, round: int) -> tuple[Path, Path]:
        stem = self.directory / f"round-{round:08}"
        return stem.with_suffix(".safetensors"), stem.with_suffix(".json")

    def _prune(self) -> None:
        """Delete manifests before vectors: a vectors file without a manifest is ignored."""
        rounds = self.rounds()
        for round in rounds[: -self.keep]:
            self._paths(round)[1].unlink()
        kept = [self._paths(round) for round in rounds[-self.keep :]]
        wanted = {vectors.name for vectors, _ in kept}
        own = [path for path in self.directory.iterdir() if OWN.fullmatch(path.name)]
        ledgers = [path for path in self.directory.glob("ledger-*") if LEDGER.fullmatch(path.name)]
        if len(ledgers) > 1:
            try:
                manifests = [_unsealed(text.read_bytes()) for _, text in kept]
            except DAMAGE:  # it may refer to any of them, and may yet be restored
                ledgers = []
            else:
                wanted |= {m["ledger"]["file"] for m in manifests if m.get("ledger")}
            own += ledgers
        for path in own:
            if path.name not in wanted:
                path.unlink()


def _serialised(state: ServerState, names: Names) -> bytes:
    tensors = {"random": torch.get_rng_state()}
    for name, vector in state.vectors.items():
        for part, t in zip(names[kind_of(name)], vector, strict=True):
            tensors[f"{name}/{part}"] = t.detach().cpu().contiguous()
    content: bytes = safetensors().save(tensors)
    return content


def _tensors(content: bytes) -> dict[str, Tensor]:
    from safetensors import SafetensorError

    try:
        found: dict[str, Tensor] = safetensors().load(content)
    except SafetensorError as error:
        raise FedladaError(f"its vectors cannot be read: {error}") from error
    return found


def _sealed(manifest: Mapping[str, Any]) -> bytes:
    """Return a manifest with its own hash, as JSON."""
    return json.dumps({"manifest": manifest, "sha256": _hash(manifest)}, indent=1).encode()


def _unsealed(content: bytes) -> dict[str, Any]:
    sealed = json.loads(content)
    manifest: dict[str, Any] = sealed["manifest"]
    require(_hash(manifest) == sealed["sha256"], "its manifest is not what was written")
    return manifest


def _fits(manifest: Mapping[str, Any], content: bytes) -> bool:
    """Return whether the vectors are those of a manifest; until format 3 their hash was SHA-256."""
    kind = "blake2b" if manifest["format"] > 3 else "sha256"
    return bool(hashlib.new(kind, content).hexdigest() == manifest[kind])


def _hash(manifest: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def safetensors() -> ModuleType:
    """Return the library's torch module, or raise an error that says what to install."""
    try:
        import safetensors.torch as torch_part
    except ModuleNotFoundError as error:
        raise missing_extra(error, "a checkpoint", "fedlada[checkpoint]") from None
    return torch_part
