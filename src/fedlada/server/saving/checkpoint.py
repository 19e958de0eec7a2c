"""Checkpoints: the server's state on disk, so that a killed run continues with the same result.

A checkpoint is two files.  Each is written under a temporary name and renamed when it is complete
and on the disk: first the vectors as ``round-00000012.safetensors``, then the manifest
``round-00000012.json`` with the hash of the vectors file, its own hash and all other values.  A
vectors file without a manifest is ignored.  What is kept about each client is in a file that grows
(:mod:`.ledger`), and the manifest has its length and hash.  The records of all rounds are in a file
of lines (:mod:`.history`).  Where replies may be late, what was sent to clients under way is in
files such as ``version-00000009.safetensors``, each written once and named, with its hash, by the
manifests that need it.  A checkpoint whose hashes do not match is skipped with a warning, and the
one before it is used.

A version of this package resumes checkpoints of its own minor version and of the one before it.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import platform
import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from ...algorithms import Vector, Vectors
from ...atomic import write
from ...errors import FedladaError, missing_extra, require
from ...protocol.federated import kind_of
from ..record import RoundRecord, record_of
from ..state import Flight, ServerState, Version
from .fingerprint import Plain, differences, fingerprint
from .history import History
from .ledger import LEDGER, NEVER, Ledger
from .lock import DirectoryInUse, DirectoryLock

__all__ = [
    "FORMAT",
    "Checkpoint",
    "CheckpointError",
    "Checkpoints",
    "Names",
    "NewerFormat",
    "safetensors",
    "versions",
]

FORMAT = 4
"""The format of the manifest: it grows by one with every change that older versions cannot read."""
MANIFEST = re.compile(r"round-(\d{8,})\.json")
RECORDS = "round-records.jsonl"
"""The name of the file with the records of all rounds."""
FILE = re.compile(r"(round|version)-\d{8,}\.(safetensors|json\.part|safetensors\.part)")
"""Names of files of checkpoints and of their unfinished writes; other files are not touched."""
BASE = "coded delta"
"""The name of a version's base in its file; no vector of an algorithm can have it."""
DAMAGE = (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError)
"""The errors of a checkpoint that is not what was written."""


Names = Mapping[str, list[str]]
"""The names of the tensors of a vector: ``parameters`` and ``buffers``."""


class CheckpointError(FedladaError):
    """A checkpoint cannot be written, read or used."""


class NewerFormat(CheckpointError):
    """A checkpoint was written by a later version of this package."""

    def __init__(self, path: Path, format: int) -> None:
        super().__init__(
            f"{path} was written by a newer fedlada (its format is {format}, and this version"
            f" reads format {FORMAT}); update with pip install --upgrade fedlada"
        )


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """The saved state of a run after a round."""

    state: ServerState
    """The server's vectors and counters."""
    record: RoundRecord
    """The record of that round."""
    config: Mapping[str, Plain]
    """What the run was: its plan, and what else it was described by."""
    versions: Mapping[str, str]
    """The versions and numbers of threads that it was computed with."""
    names: Names
    """The names of the model's parameters and buffers."""
    random: Tensor
    """Torch's random state, for random numbers drawn outside of clients."""

    def model(self) -> dict[str, Tensor]:
        """Return the federated parameters and averaged buffers by their ``state_dict`` names."""
        s = self.state.vectors
        state_dict = dict(zip(self.names["parameters"], s.x, strict=True))
        if "buffers" in s:
            state_dict |= dict(zip(self.names["buffers"], s.buffers, strict=True))
        return state_dict

    def check(
        self, config: Mapping[str, Plain], *, numerics: Mapping[str, object] | None = None
    ) -> None:
        """Raise an error that names the differences unless ``config`` is what was saved.

        Other versions, another kind of processor and other ``numerics``, such as the number of
        threads, are a warning.
        """
        changed = differences(config, self.config)
        if changed:
            raise CheckpointError(
                f"this run is not the one that was saved: {'; '.join(changed[:5])}"
                f"{'; ...' if len(changed) > 5 else ''}. Use the saved settings, or give"
                " another directory to start a new run"
            )
        now = versions(numerics)
        other = [
            f"{n} {v} then, {now.get(n)} now" for n, v in self.versions.items() if v != now.get(n)
        ]
        if other:
            warnings.warn(
                "the checkpoint was saved with other versions, threads or at_once, or on another"
                f" device or processor ({'; '.join(other)}): the resumed run may differ in some"
                " bits",
                stacklevel=3,
            )


class Checkpoints:
    """A directory of checkpoints of one run."""

    def __init__(
        self,
        directory: str | Path,
        *,
        every: int = 1,
        keep: int = 2,
        wait: float = 0.0,
        records: str | Path | None = None,
    ) -> None:
        """Save after every ``every`` rounds and keep the last ``keep`` checkpoints.

        Wait up to ``wait`` seconds for another process that still holds the directory.  The
        ``records`` of all rounds are in a file of the directory, or in this one, which then must
        have all rounds when the run resumes.
        """
        require(every >= 1, f"every is {every}; it must be at least 1")
        require(keep >= 1, f"keep is {keep}; it must be at least 1")
        self.directory = Path(directory)
        self.every, self.keep = every, keep
        self._lock = DirectoryLock(self.directory, wait=wait)
        self._ledger = Ledger(self.directory)
        file = self.directory / RECORDS if records is None else Path(records)
        self._history = History(file, complete=records is not None)
        self._versions: dict[int, str] = {}
        """The hash of the file of each version that was written or read."""

    @property
    def clients(self) -> Path:
        """The directory where the clients of an in-process run keep their vectors."""
        return self.directory / "clients"

    def records(self) -> list[RoundRecord]:
        """Return the records of the rounds that were saved, in order."""
        return self._history.read()

    def config(self) -> Mapping[str, Plain]:
        """Return the configuration of the run, as its newest checkpoint has it, or nothing."""
        rounds = self.rounds()
        if not rounds:
            return {}
        config: Mapping[str, Plain] = _unsealed(self._paths(rounds[-1])[1].read_bytes())["config"]
        return config

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
                f"{self.directory} cannot be created or written ({error.strerror}); give another"
                " directory for checkpoints"
            ) from error

    def close(self) -> None:
        """Release the directory for another run."""
        self._lock.release()

    def save(
        self,
        state: ServerState,
        record: RoundRecord,
        *,
        config: Mapping[str, Plain],
        names: Names,
        numerics: Mapping[str, object] | None = None,
        earlier: Sequence[RoundRecord] = (),
    ) -> int:
        """Write a checkpoint, delete old ones and return the earliest round that is left.

        ``earlier`` has the records of the rounds between the last checkpoint and this one.
        """
        if not self._lock.taken:
            raise CheckpointError(
                f"this run no longer holds {self.directory}: it was closed, or another run of this"
                " process has taken over the directory; continue that run instead"
            )
        content = _serialised({"random": torch.get_rng_state()}, state.vectors, names)
        vectors, text = self._paths(state.round)
        try:
            self._ledger.append(state)
            self._history.append([*earlier, record])
            under_way = self._under_way(state, names)
            manifest = {
                "format": FORMAT,
                "round": state.round,
                "updates": state.updates,
                "run": state.run,
                "ledger": self._ledger.reference(),
                **({} if state.time is None else {"time": state.time}),
                **({"enrolled": state.enrolled, "clips": state.clips} if state.clips else {}),
                **under_way,
                "metric_names": state.metric_names,
                "history": state.history,
                "record": dataclasses.asdict(record),
                "config": config,
                "fingerprint": fingerprint(config),
                "versions": versions(numerics),
                "names": names,
                "vectors": list(state.vectors),
                "blake2b": hashlib.blake2b(content).hexdigest(),
            }
            write(vectors, content)
            write(text, _sealed(manifest))
        except OSError as error:
            raise self._not_written(state.round, error) from error
        self._prune()
        return self._oldest()

    def _under_way(self, state: ServerState, names: Names) -> dict[str, Any]:
        """Return the clients under way for the manifest, and write what is not yet on the disk."""
        if not state.flights:
            return {}
        versions = {}
        for number, kept in state.versions.items():
            if number not in self._versions:
                base = Vectors() if kept.base is None else Vectors({BASE: kept.base})
                content = _serialised({}, Vectors({**kept.vectors, **base}), names)
                write(self._version(number), content)
                self._versions[number] = hashlib.blake2b(content).hexdigest()
                if all(t.device.type == "cpu" for v in kept.vectors.values() for t in v):
                    coded = kept.base is not None
                    there = self._on_disk(number, kept.vectors, names, coded=coded)
                    state.versions[number] = dataclasses.replace(kept, **there)
            versions[str(number)] = {
                "lr": kept.lr,
                "nonce": kept.nonce,
                "vectors": [*kept.vectors],
                "coded": kept.base is not None,
                "blake2b": self._versions[number],
            }
        flights = [[client, *flight] for client, flight in state.flights.items()]
        return {"flights": flights, "versions_under_way": versions}

    def _version(self, number: int) -> Path:
        return self.directory / f"version-{number:08}.safetensors"

    def _on_disk(
        self, number: int, which: Iterable[str], names: Names, *, coded: bool
    ) -> dict[str, Any]:
        """Return the tensors of a version's file, which are read when they are used."""
        with safetensors().safe_open(self._version(number), "pt") as file:
            stored = file.keys()
            tensors = {name: file.get_tensor(name) for name in stored}
        base = _vectors(tensors, [BASE], names)[BASE] if coded else None
        return {"vectors": _vectors(tensors, which, names), "base": base}

    def _oldest(self) -> int:
        """Return the earliest round that is left, or of a task that a checkpoint still has."""
        stems = (path.stem for path in self.directory.glob("version-*.safetensors"))
        return min([*self.rounds()[:1], *(int(stem.partition("-")[2]) for stem in stems)])

    def _not_written(self, round: int, error: OSError) -> CheckpointError:
        if not self.directory.is_dir():
            return CheckpointError(
                f"{self.directory} is gone: it was deleted or moved in round {round}, while the run"
                " was using it. Restore it and run the same command again, or start a new run in"
                " another directory"
            )
        rounds = self.rounds()
        kept = f" The checkpoint of round {rounds[-1]} is intact." if rounds else ""
        return CheckpointError(
            f"the checkpoint of round {round} could not be written to {self.directory}"
            f" ({error.strerror}).{kept} Free disk space and run the same command again"
        )

    def resume(self) -> tuple[Checkpoint | None, list[RoundRecord]]:
        """Lock the directory and return its newest checkpoint and the records up to there.

        The records of later rounds, which run again, are deleted.
        """
        self.open()
        saved = self.latest()
        return saved, self._history.resume(None if saved is None else saved.record)

    def latest(self) -> Checkpoint | None:
        """Return the newest undamaged checkpoint, or None if there are no checkpoints."""
        rounds, damage = self.rounds(), {}
        self._ledger, self._versions = Ledger(self.directory), {}
        if rounds:
            safetensors()  # a missing library must not count as a damaged checkpoint
        for round in reversed(rounds):
            try:
                return self._load(round, oldest=self._oldest())
            except CheckpointError:  # of a format that this version does not read
                raise
            except DAMAGE as error:
                damage[round] = str(error) or type(error).__name__
                before = "; trying the one before" if round != rounds[0] else ""
                warnings.warn(
                    f"the checkpoint of round {round} in {self.directory} is damaged"
                    f" ({damage[round]}){before}",
                    stacklevel=2,
                )
        if rounds:
            reasons = "; ".join(f"round {round}: {reason}" for round, reason in damage.items())
            raise CheckpointError(
                f"every checkpoint in {self.directory} is damaged ({reasons}). Restore its files"
                " from a backup and run the same command again. Without a backup the rounds up to"
                f" {rounds[-1]} are lost: start a new run in another directory, and keep this one"
            )
        return None

    def _load(self, round: int, oldest: int) -> Checkpoint:
        vectors, text = self._paths(round)
        manifest = _unsealed(text.read_bytes())
        _check_format(text, manifest["format"])
        content = vectors.read_bytes()
        require(
            hashlib.blake2b(content).hexdigest() == manifest["blake2b"],
            f"{vectors.name} is not what was written",
        )
        tensors = _tensors(content)
        names: Names = manifest["names"]
        ledger, entries = Ledger.read(self.directory, manifest["ledger"])
        last = {client: last for client, last, _ in entries}
        contributed = {client: value for client, _, value in entries}
        versions = self._read_versions(manifest.get("versions_under_way", {}), names)
        state = ServerState(
            _vectors(tensors, manifest["vectors"], names),
            round=manifest["round"],
            updates=manifest["updates"],
            run=manifest["run"],
            last_accepted={client: last for client, last in last.items() if last != NEVER},
            contributed={client: value for client, value in contributed.items() if value},
            metric_names=list(manifest["metric_names"]),
            history={name: [tuple(r) for r in rs] for name, rs in manifest["history"].items()},
            time=manifest.get("time"),
            resumable_from=oldest,
            flights={client: Flight(*rest) for client, *rest in manifest.get("flights", [])},
            versions=versions,
            clips=dict(manifest.get("clips", {})),
            enrolled=manifest.get("enrolled", 0),
        )
        checkpoint = Checkpoint(
            state=state,
            record=record_of(manifest["record"]),
            config=manifest["config"],
            versions=manifest["versions"],
            names=names,
            random=tensors["random"],
        )
        self._ledger = ledger
        return checkpoint

    def _read_versions(self, table: Mapping[str, Any], names: Names) -> dict[int, Version]:
        """Return what is kept of the tasks that clients under way have."""
        versions = {}
        for number, kept in table.items():
            path = self._version(int(number))
            content = path.read_bytes()
            require(
                hashlib.blake2b(content).hexdigest() == kept["blake2b"],
                f"{path.name} is not what was written",
            )
            there = self._on_disk(int(number), kept["vectors"], names, coded=kept["coded"])
            versions[int(number)] = Version(lr=kept["lr"], nonce=kept["nonce"], **there)
            self._versions[int(number)] = kept["blake2b"]
        return versions

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
        files = [path for path in self.directory.iterdir() if FILE.fullmatch(path.name)]
        ledgers = [path for path in self.directory.glob("ledger-*") if LEDGER.fullmatch(path.name)]
        versions = [path for path in files if path.name.startswith("version-")]
        if len(ledgers) > 1 or versions:
            try:
                manifests = [_unsealed(text.read_bytes()) for _, text in kept]
            except DAMAGE:  # a damaged manifest may need any of them if it is restored
                wanted |= {path.name for path in (*ledgers, *versions)}
            else:
                wanted |= {m["ledger"]["file"] for m in manifests if m.get("ledger")}
                under_way = {int(n) for m in manifests for n in m.get("versions_under_way", {})}
                wanted |= {self._version(number).name for number in under_way}
            files += ledgers if len(ledgers) > 1 else []
        for path in files:
            if path.name not in wanted:
                path.unlink()


def _serialised(more: Mapping[str, Tensor], vectors: Vectors, names: Names) -> bytes:
    tensors = dict(more)
    for name, vector in vectors.items():
        for part, t in zip(names[kind_of(name)], vector, strict=True):
            tensors[f"{name}/{part}"] = t.detach().cpu().contiguous()
    content: bytes = safetensors().save(tensors)
    return content


def _vectors(tensors: Mapping[str, Tensor], which: Iterable[str], names: Names) -> Vectors:
    return Vectors(
        (name, Vector(tensors[f"{name}/{part}"] for part in names[kind_of(name)])) for name in which
    )


def _tensors(content: bytes) -> dict[str, Tensor]:
    from safetensors import SafetensorError

    try:
        tensors: dict[str, Tensor] = safetensors().load(content)
    except SafetensorError as error:
        raise FedladaError(f"its vectors cannot be read: {error}") from error
    return tensors


def _sealed(manifest: Mapping[str, Any]) -> bytes:
    """Return a manifest with its own hash, as JSON."""
    return json.dumps({"manifest": manifest, "sha256": _hash(manifest)}, indent=1).encode()


def _unsealed(content: bytes) -> dict[str, Any]:
    sealed = json.loads(content)
    manifest: dict[str, Any] = sealed["manifest"]
    require(_hash(manifest) == sealed["sha256"], "its manifest is not what was written")
    return manifest


def _check_format(path: Path, format: int) -> None:
    if format > FORMAT:
        raise NewerFormat(path, format)
    if format < FORMAT:
        raise CheckpointError(
            f"{path} was written by an older fedlada (its format is {format}, and this version"
            f" reads format {FORMAT}); finish the run with the version that began it, or start a"
            " new run in another directory"
        )


def _hash(manifest: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def safetensors() -> ModuleType:
    """Return the library's torch module, or raise an error that says what to install."""
    try:
        import safetensors.torch as torch_part
    except ModuleNotFoundError as error:
        raise missing_extra(error, "a checkpoint", "fedlada[checkpoint]") from None
    return torch_part


version = cache(metadata.version)  # which searches the disk, and every round has a checkpoint


def versions(numerics: Mapping[str, object] | None = None) -> dict[str, str]:
    """Return what decides the bits of a run besides its settings, as far as it is known."""
    installed = {
        "python": platform.python_version(),
        "processor": torch.backends.cpu.get_cpu_capability(),
    }
    installed |= {name: str(value) for name, value in (numerics or {}).items()}
    for package in ("fedlada", "torch", "flwr"):
        try:
            installed[package] = version(package)
        except PackageNotFoundError:
            continue
    return installed
