"""What a private run has spent, and the secret behind its cohorts and its noise.

A line of the account is on the disk before the noised mean that it stands for is used.  So a run
that is killed at any moment has at least as many lines as releases, and epsilon is that of the
lines.  A release that is lost with its round stays spent, and the round is released again with
other noise: the difference of two means with the same noise would have no noise at all.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from ...atomic import sync_names
from ...errors import FedladaError, require
from ...privacy.account import Event, composed, most_within
from ...privacy.noise import Secret, Source, uniform

__all__ = ["ACCOUNT", "SECRET", "Account"]

ACCOUNT, SECRET = "privacy-account.jsonl", "privacy-secret"
"""The files in a directory of checkpoints; whoever has the secret can subtract the noise."""
BYTES = 32


class Account:
    """The releases of a run, and the random numbers that belong to each."""

    def __init__(self, *, seed: int | None = None, directory: Path | None = None) -> None:
        """Continue the account of a directory, or begin one.

        With a ``seed``, cohorts and noise follow from it and the round, and nothing is private.
        """
        self.seeded = seed is not None
        self._file = None if directory is None else directory / ACCOUNT
        self._spent = Counter[Event]() if self._file is None else _read(self._file)
        self._most: int | None = None
        if seed is not None:
            self._secret = Secret(repr(("privacy", seed)).encode())
        else:
            self._secret = Secret.new() if directory is None else _secret(directory / SECRET)

    @property
    def releases(self) -> int:
        """The number of releases that were paid for."""
        return self._spent.total()

    def epsilon(self, delta: float) -> float:
        """Return the epsilon of all releases so far."""
        return composed(self._spent, delta)

    def allows(self, event: Event, epsilon: float | None, delta: float, rounds: int) -> bool:
        """Return whether one more release stays within the budget; ``rounds`` are left."""
        if epsilon is None:
            return True
        if self._most is None:
            self._most = self.releases + most_within(epsilon, delta, self._spent, event, rounds)
        return self.releases < self._most

    def spend(self, event: Event, round: int, clips: Mapping[str, float]) -> None:
        """Note a release; its line is on the disk when this returns."""
        line = {
            "release": self.releases + 1,
            "round": round + 1,
            **event._asdict(),
            "clips": dict(clips),
        }
        if self._file is not None:
            try:
                _append(self._file, json.dumps(line) + "\n")
            except OSError as error:
                raise FedladaError(
                    f"the account of privacy could not be written to {self._file}"
                    f" ({error.strerror}), so round {round + 1} was not released. Free disk space"
                    " and run the same command again"
                ) from error
        self._spent[event] += 1

    def source(self, purpose: str, round: int) -> Source:
        """Return random bytes for the next release, or after ``spend`` for that one."""
        label = (purpose, round) if self.seeded else (purpose, round, self.releases)
        return self._secret.source(*label)

    def cohort(self, round: int, clients: int, rate: float) -> list[int]:
        """Return the clients of a round, each drawn by its own chance; there may be none."""
        drawn = uniform(clients, self.source("cohort", round)) < rate
        return [int(client) for client in drawn.nonzero().flatten()]

    def check(self, updates: int) -> None:
        """Raise an error if releases are missing from the account."""
        require(
            self.releases >= updates,
            f"{self._file} has {self.releases} releases, and the run has made {updates}; restore"
            " the file from a backup: without it nobody knows what was spent",
        )


def _append(file: Path, line: str) -> None:
    new = not file.exists()
    with file.open("ab") as opened:
        opened.write(line.encode())
        opened.flush()
        os.fsync(opened.fileno())
    if new:
        sync_names(file.parent)


def _read(file: Path) -> Counter[Event]:
    """Return the releases of a file; a line without an end was never used, and is cut off."""
    if not file.exists():
        return Counter()
    content = file.read_bytes()
    whole = content.rpartition(b"\n")
    if whole[2]:
        os.truncate(file, len(content) - len(whole[2]))
    try:
        lines = [json.loads(line) for line in whole[0].splitlines()]
        return Counter(Event(float(line["rate"]), float(line["noise"])) for line in lines)
    except (ValueError, LookupError, TypeError) as error:
        raise FedladaError(
            f"{file} is damaged ({error}); restore it from a backup: without it nobody knows what"
            " was spent"
        ) from error


def _secret(file: Path) -> Secret:
    """Return the secret of a directory, which nobody but the owner may read; make it if needed."""
    if not file.exists():
        part = file.with_name(file.name + ".part")
        part.unlink(missing_ok=True)
        opened = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(opened, "wb") as written:
            written.write(Secret.new().key)
            written.flush()
            os.fsync(written.fileno())
        part.replace(file)
        sync_names(file.parent)
    key = file.read_bytes()
    require(
        len(key) == BYTES,
        f"{file} is not the secret that was written; delete it, and the run resumes with another",
    )
    return Secret(key)
