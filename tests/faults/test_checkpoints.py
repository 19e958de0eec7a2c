"""Server processes that are killed, and disks that fail: the run goes on from what is whole."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from fedlada import CheckpointError, Checkpoints, FixedSize, LocalTraining, simulate
from fedlada.data import ClientData

ROUNDS, KILLED = 6, 3


def start(directory: Path, *, algorithm: str = "scaffold", rounds: int = ROUNDS):
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(6, 30, 8, generator=generator)
    data = [ClientData(x, (x[:, :3] + i).argmax(1)) for i, x in enumerate(inputs)]
    torch.manual_seed(0)
    return simulate(
        nn.Linear(8, 3),
        data,
        algorithm=algorithm,
        rounds=rounds,
        train=LocalTraining(steps=3, batch_size=10),
        sampling=FixedSize(3),
        checkpoints=directory,
    )


def finished(directory: Path, algorithm: str = "scaffold"):
    run = start(directory, algorithm=algorithm)
    run.run()
    return run


def same(a, b) -> bool:
    return all(a.state.vectors[n].equal(b.state.vectors[n]) for n in a.state.vectors)


DEATHS = {
    "after push": "fedlada.engines.in_process.InProcess.exchange",
    "mid-collect": "fedlada.server.tally.Tally.add",
    "after aggregate": "fedlada.server.checkpoint.Checkpoints.save",
    "mid-checkpoint, nothing written": "fedlada.server.checkpoint.write",
    "mid-checkpoint, file not in its place": "pathlib.Path.replace",
    "mid-checkpoint, between its files": "fedlada.server.checkpoint._sealed",
    "mid-checkpoint, before pruning": "fedlada.server.checkpoint.Checkpoints._prune",
    "after commit": "fedlada.engines.in_process.InProcess.commit",
}
"""A function whose call in the third round is the last thing the process does."""

PROGRAM = """
import importlib, os, signal, sys
sys.path[:0] = {path!r}
import test_checkpoints as here
module, _, name = {victim!r}.rpartition(".")
try:
    owner = importlib.import_module(module)
except ModuleNotFoundError:
    module, _, kind = module.rpartition(".")
    owner = getattr(importlib.import_module(module), kind)
original = getattr(owner, name)
current = dict(round=0)

def dying(*arguments, **named):
    if current["round"] == here.KILLED - 1:
        if {after!r}:
            original(*arguments, **named)
        os.kill(os.getpid(), signal.SIGKILL)
    return original(*arguments, **named)

setattr(owner, name, dying)
run = here.start(here.Path({directory!r}), algorithm={algorithm!r})
for record in run:
    current["round"] = record.round
"""


@pytest.mark.parametrize("algorithm", ["scaffold", "fedlada"])
@pytest.mark.parametrize("moment", DEATHS)
def test_a_server_killed_in_mid_round_is_resumed_bit_for_bit(tmp_path, moment, algorithm):
    program = PROGRAM.format(
        path=[str(Path(__file__).parent)],
        victim=DEATHS[moment],
        after=moment == "after commit",
        directory=str(tmp_path / "killed"),
        algorithm=algorithm,
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    again = start(tmp_path / "killed", algorithm=algorithm)
    assert again.resumed.round in (KILLED - 1, KILLED)
    again.run()
    assert same(again, finished(tmp_path / "whole", algorithm))


def damage(path: Path, how: str) -> None:
    content = path.read_bytes()
    if how == "torn":
        path.write_bytes(content[: len(content) // 2])
    elif how == "flipped":
        middle = len(content) // 2
        path.write_bytes(content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :])
    elif how == "empty":
        path.write_bytes(b"")
    else:
        path.unlink()


@pytest.mark.parametrize("how", ["torn", "flipped", "empty", "gone"])
@pytest.mark.parametrize("file", ["safetensors", "json"])
def test_a_damaged_checkpoint_is_noticed_and_the_one_before_used(tmp_path, file, how):
    start(tmp_path / "run", rounds=4).run()
    damage(tmp_path / "run" / f"round-00000004.{file}", how)
    if (file, how) == ("json", "gone"):  # then it was never there
        again = start(tmp_path / "run")
    else:
        with pytest.warns(UserWarning, match="the checkpoint of round 4 in .* is damaged"):
            again = start(tmp_path / "run")
    assert again.resumed.round == 3
    again.run()
    assert same(again, finished(tmp_path / "whole"))


def test_every_flipped_bit_is_noticed(tmp_path):
    start(tmp_path, rounds=2).run()
    for path in (tmp_path / "round-00000002.json", tmp_path / "round-00000002.safetensors"):
        content = path.read_bytes()
        for position in range(0, len(content), max(1, len(content) // 40)):
            flipped = bytearray(content)
            flipped[position] ^= 1 << position % 8
            path.write_bytes(flipped)
            with pytest.warns(UserWarning, match="damaged"):
                found = Checkpoints(tmp_path).latest()
            assert found.state.round == 1
        path.write_bytes(content)
    assert Checkpoints(tmp_path).latest().state.round == 2


def test_if_no_checkpoint_is_whole_nothing_is_started_anew(tmp_path):
    start(tmp_path, rounds=2).run()
    for path in tmp_path.glob("*.safetensors"):
        damage(path, "torn")
    with (
        pytest.warns(UserWarning, match="damaged"),
        pytest.raises(ValueError, match="restore one, or delete the directory"),
    ):
        start(tmp_path)


def test_on_a_full_disk_the_run_stops_with_a_sentence_and_goes_on_when_there_is_room(tmp_path):
    """The disk is full at a file of more than 1000 bytes: the vectors are larger."""
    program = f"""
import resource, sys
sys.path[:0] = [{str(Path(__file__).parent)!r}]
import test_checkpoints as here
here.start(here.Path({str(tmp_path / "run")!r}), algorithm="fedlada", rounds=2).run()
run = here.start(here.Path({str(tmp_path / "run")!r}), algorithm="fedlada")
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
run.run()
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert ended.returncode == 1
    assert "the checkpoint of round 3 could not be written" in ended.stderr
    assert "The one of round 2 is whole: make room and run the same again" in ended.stderr
    assert not list((tmp_path / "run").glob("*.part"))
    again = start(tmp_path / "run", algorithm="fedlada")
    assert again.resumed.round == 2
    again.run()
    assert same(again, finished(tmp_path / "whole", "fedlada"))


@pytest.mark.parametrize("algorithm", ["fedlada", "scaffold"])
def test_a_full_disk_leaves_nothing_half_written(tmp_path, monkeypatch, algorithm):
    run = start(tmp_path, algorithm=algorithm)

    def full(*_):
        raise OSError(28, os.strerror(28))

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", full)
        with pytest.raises((CheckpointError, OSError), match="No space left on device"):
            run.run()
    assert not list(tmp_path.rglob("*.part"))
    assert same(finished(tmp_path, algorithm), finished(tmp_path / "whole", algorithm))


def test_kills_at_random_moments():
    """A dozen here; 200 in the benchmark as it is."""
    ended = subprocess.run(
        [sys.executable, "benchmarks/kills.py", "--check", "--kills", "12", "--seed", "7"],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
