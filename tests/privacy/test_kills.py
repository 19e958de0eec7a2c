"""A private run that is killed at any file operation has paid for all that it has released."""

import itertools
import json
import multiprocessing
import os
import signal
from pathlib import Path

import pytest
import torch
from torch import nn

from fedlada import Algorithm, LocalTraining, simulate
from fedlada.privacy.account import Event, composed
from fedlada.server.private.account import ACCOUNT, Account

ROUNDS = int(os.environ.get("FEDLADA_KILL_ROUNDS", "2"))
EVERY = int(os.environ.get("FEDLADA_KILL_EVERY", "11"))
"""A run is killed at every eleventh of its hundred file operations, or at each with 1."""
OPERATIONS = [(os, n) for n in ("fsync", "open", "replace", "rename", "truncate", "unlink")]
OPERATIONS += [(Path, n) for n in ("open", "replace", "unlink", "read_bytes")]


def run(directory: Path, rounds: int = ROUNDS) -> None:
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(8, 10, 4, generator=generator)
    torch.manual_seed(0)
    simulate(
        nn.Linear(4, 3),
        [(x, x[:, :3].argmax(1)) for x in inputs],
        algorithm="scaffold",
        rounds=rounds,
        cohort=0.5,
        train=LocalTraining(steps=1, batch_size=5),
        privacy={"noise": 2.0, "delta": 1e-2, "quantile": 0, "steps": 1, "epsilon": 50.0},
        checkpoints=directory,
        quiet=True,
    ).run()


def counted(told: Path, directory: Path, last: int | None) -> None:
    """Run, note the noise of every release, and die at this file operation, if it is given."""
    done, pid = 0, os.getpid()
    notes = os.open(told, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def wrapped(owner: object, name: str) -> None:
        original = getattr(owner, name)

        def operation(*arguments, **named):
            nonlocal done
            done += 1
            if done == last:
                os.kill(pid, signal.SIGKILL)
            return original(*arguments, **named)

        setattr(owner, name, operation)

    serve, source = Algorithm.serve, Account.source

    def noted(self, purpose, round):
        found = source(self, purpose, round)
        if purpose == "noise":
            os.write(notes, b"drawn " + source(self, purpose, round)(8).hex().encode() + b"\n")
        return found

    def served(self, *arguments):
        os.write(notes, b"used\n")
        serve(self, *arguments)

    Account.source, Algorithm.serve = noted, served
    for owner, name in OPERATIONS:
        wrapped(owner, name)
    run(directory)


def forked(*arguments: object) -> int | None:
    process = multiprocessing.get_context("fork").Process(target=counted, args=arguments)
    process.start()
    process.join()
    return process.exitcode


@pytest.mark.programs(seconds=30)
def test_a_run_killed_at_any_file_operation_has_paid_for_its_releases(tmp_path):
    composed({Event(0.5, 2.0): 1}, 1e-2)  # the processes have it then
    for last in itertools.count(1, EVERY):  # who takes part is secret, and so is the last of them
        told, directory = tmp_path / f"told-{last}", tmp_path / f"{last}"
        ended = forked(told, directory, last)
        if ended == 0:
            break
        assert ended == -signal.SIGKILL
        assert forked(told, directory, None) == 0
        notes = told.read_text().splitlines()
        drawn = [note for note in notes if note.startswith("drawn")]
        lines = [json.loads(line) for line in (directory / ACCOUNT).read_text().splitlines()]
        assert len(lines) >= len(drawn) >= notes.count("used") >= ROUNDS
        assert len(set(drawn)) == len(drawn), "no noise is drawn twice"
        assert [line["release"] for line in lines] == list(range(1, len(lines) + 1))
        assert {line["round"] for line in lines} == set(range(1, ROUNDS + 1))
    assert last > 15 * ROUNDS
