"""Server processes that are killed, and disks that fail: the run goes on from what is whole."""

import json
import multiprocessing
import os
import pkgutil
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from hashlib import blake2b
from pathlib import Path

import pytest
import torch
from torch import nn

from fedlada import CheckpointError, Checkpoints, FedladaError, LocalTraining, simulate
from fedlada.data import ClientData
from fedlada.server import FixedSize
from fedlada.server.saving import ledger
from fedlada.server.saving.checkpoint import FORMAT, _sealed
from places import ROOT, TESTS

ROUNDS, KILLED = 6, 3
UNTIMED = dict.fromkeys(("seconds", "local_seconds", "server_seconds"), 0.0)


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
        cohort=FixedSize(3),
        checkpoints=directory,
        personal=("bias",) if algorithm == "fedavg" else (),
    )


def finished(directory: Path, algorithm: str = "scaffold", *, rounds: int = ROUNDS):
    run = start(directory, algorithm=algorithm, rounds=rounds)
    run.run()
    return run


def same(a, b) -> bool:
    """Whether two runs have the same state, and the same records but for the times of a clock."""
    alike = all(a.state.vectors[n].equal(b.state.vectors[n]) for n in a.state.vectors)
    records = [[replace(r, **UNTIMED) for r in run.records] for run in (a, b)]
    return alike and a.state.last_accepted == b.state.last_accepted and records[0] == records[1]


@cache
def whole(algorithm: str = "scaffold", *, rounds: int = ROUNDS):
    """A run that nothing disturbs, with which several tests compare theirs."""
    with tempfile.TemporaryDirectory() as directory:
        run = finished(Path(directory), algorithm, rounds=rounds)
        biases = [run.model_of(client).bias for client in range(6)]
    return run, biases


DEATHS = {
    "after push": "fedlada.engines.in_process.InProcess.exchange",
    "mid-collect": "fedlada.server.collect.tally.Tally.add",
    "after aggregate": "fedlada.server.saving.checkpoint.Checkpoints.save",
    "before the records": "fedlada.server.saving.history.History.append",
    "records written, no manifest": "fedlada.server.saving.checkpoint.fingerprint",
    "before the ledger": "fedlada.server.saving.ledger.Ledger.append",
    "ledger not yet open": "fedlada.server.saving.ledger.Ledger._add",
    "written, not synced": "os.fsync",
    "ledger whole, nothing else": "fedlada.server.saving.ledger.Ledger._grow",
    "ledger begun anew": "fedlada.server.saving.ledger.Ledger._rewrite",
    "ledger written anew, nothing else": "fedlada.server.saving.ledger.Ledger.reference",
    "mid-checkpoint, nothing written": "fedlada.server.saving.checkpoint.write",
    "mid-checkpoint, file not in its place": "pathlib.Path.replace",
    "mid-checkpoint, between its files": "fedlada.server.saving.checkpoint._sealed",
    "mid-checkpoint, before pruning": "fedlada.server.saving.checkpoint.Checkpoints._prune",
    "after commit": "fedlada.engines.in_process.InProcess.commit",
}
"""A function whose call in the third round is the last thing the process does."""

KILLS = [
    (moment, algorithm)
    for moment in DEATHS
    for algorithm in ("scaffold", "fedlada")
    if algorithm == "scaffold" or "ledger" not in moment  # the clients of fedlada keep nothing
]
KILLS += [(moment, "fedavg") for moment in ("mid-collect", "after aggregate", "after commit")]
"""The clients of the last ones keep personal parts, and nothing else."""


def forked(work: Callable[..., None], *arguments: object) -> int | None:
    """The exit code of a process that does this; a new Python would import torch for longer."""
    process = multiprocessing.get_context("fork").Process(target=work, args=arguments)
    process.start()
    process.join()
    return process.exitcode


def run_and_die(directory: Path, moment: str, algorithm: str) -> None:
    """Run, in a process of its own, and be killed at the moment."""
    place, _, name = DEATHS[moment].rpartition(".")
    owner, done = pkgutil.resolve_name(place), 0
    original = getattr(owner, name)
    if "anew" in moment:
        ledger.SLACK = -12

    def dying(*arguments, **named):
        if done == KILLED - 1:
            if moment == "after commit":
                original(*arguments, **named)
            os.kill(os.getpid(), signal.SIGKILL)
        return original(*arguments, **named)

    setattr(owner, name, dying)
    for record in start(directory, algorithm=algorithm):
        done = record.round


@pytest.mark.programs(seconds=60)
@pytest.mark.parametrize(("moment", "algorithm"), KILLS)
def test_a_server_killed_in_mid_round_is_resumed_bit_for_bit(tmp_path, moment, algorithm):
    assert forked(run_and_die, tmp_path / "killed", moment, algorithm) == -signal.SIGKILL
    again = start(tmp_path / "killed", algorithm=algorithm)
    assert again.resumed.round in (KILLED - 1, KILLED)
    again.run()
    expected, biases = whole(algorithm)
    assert same(again, expected)
    assert all(again.model_of(i).bias.equal(bias) for i, bias in enumerate(biases))


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
    assert same(again, whole()[0])


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
        pytest.raises(ValueError, match="Restore its files from a backup"),
    ):
        start(tmp_path)


def test_on_a_full_disk_the_run_stops_with_a_sentence_and_goes_on_when_there_is_room(tmp_path):
    """The disk is full at a file of more than 1000 bytes: the vectors are larger."""
    program = f"""
import resource, sys
sys.path.insert(0, {str(TESTS)!r})
import server.test_checkpoint_faults as here
here.start(here.Path({str(tmp_path / "run")!r}), algorithm="fedlada", rounds=2).run()
run = here.start(here.Path({str(tmp_path / "run")!r}), algorithm="fedlada")
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
run.run()
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert ended.returncode == 1
    assert "the checkpoint of round 3 could not be written" in ended.stderr
    assert "The checkpoint of round 2 is intact. Free disk space and run the same" in ended.stderr
    assert not list((tmp_path / "run").glob("*.part"))
    again = start(tmp_path / "run", algorithm="fedlada")
    assert again.resumed.round == 2
    again.run()
    assert same(again, whole("fedlada")[0])


@pytest.mark.parametrize("algorithm", ["fedlada", "scaffold"])
def test_a_full_disk_leaves_nothing_half_written(tmp_path, monkeypatch, algorithm):
    run = start(tmp_path, algorithm=algorithm)

    def full(*_):
        raise OSError(28, os.strerror(28))

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", full)
        with pytest.raises(FedladaError, match=r"No space left on device.*Free disk space"):
            run.run()
    assert not list(tmp_path.rglob("*.part"))
    assert same(finished(tmp_path, algorithm), whole(algorithm)[0])


@pytest.mark.programs(seconds=60)
def test_kills_at_random_moments():
    """A dozen here; 200 in the benchmark as it is."""
    ended = subprocess.run(
        [sys.executable, "benchmarks/kills.py", "--check", "--kills", "12", "--seed", "7"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr


def ledger_of(directory: Path) -> Path:
    (found,) = directory.glob("ledger-*.bin")
    return found


@pytest.mark.parametrize("how", ["torn", "flipped", "empty", "gone"])
def test_a_damaged_ledger_is_noticed(tmp_path, how):
    """The last entries are the newest checkpoint's alone; the first are all checkpoints'."""
    start(tmp_path, rounds=4).run()
    ledger = ledger_of(tmp_path)
    content = ledger.read_bytes()
    if how in ("torn", "flipped"):
        changed = content[:-1] if how == "torn" else content[:-1] + bytes([content[-1] ^ 1])
        ledger.write_bytes(changed)
        with pytest.warns(UserWarning, match="round 4 in .* is damaged .*ledger.*not what was"):
            assert Checkpoints(tmp_path).latest().state.round == 3
    damage(ledger, "flipped" if how == "flipped" else how)
    if how == "flipped":
        ledger.write_bytes(bytes([content[0] ^ 1]) + content[1:])
    with (
        pytest.warns(UserWarning, match="damaged"),
        pytest.raises(CheckpointError, match=r"every checkpoint in .* is damaged .*ledger"),
    ):
        start(tmp_path)


def test_what_lies_behind_the_ledger_of_a_checkpoint_is_cut_off(tmp_path):
    """As left by a process that was killed between the ledger and the manifest."""
    start(tmp_path / "run", rounds=3).run()
    ledger = ledger_of(tmp_path / "run")
    with ledger.open("ab") as file:
        file.write(b"\xff" * 100)
    assert same(finished(tmp_path / "run"), finished(tmp_path / "whole"))
    assert ledger.read_bytes() == ledger_of(tmp_path / "whole").read_bytes()


@pytest.mark.parametrize("keep", [1, 2, 3])
def test_a_ledger_that_is_written_anew_leaves_every_kept_checkpoint_readable(
    tmp_path, monkeypatch, keep
):
    monkeypatch.setattr("fedlada.server.saving.ledger.SLACK", -8)
    place = Checkpoints(tmp_path / "run", keep=keep)
    names = set()
    for record in start(place, rounds=ROUNDS):
        names |= {path.name for path in (tmp_path / "run").glob("ledger-*")}
        for round in place.rounds():
            found = Checkpoints(tmp_path / "run")._load(round, oldest=round).state
            assert found.round == round
            assert all(last < round for last in found.last_accepted.values())
        assert len(place.rounds()) == min(keep, record.round)
    assert len(names) > 2
    assert len(list((tmp_path / "run").glob("ledger-*"))) <= keep
    whole = finished(tmp_path / "whole")
    assert place.latest().state.last_accepted == whole.state.last_accepted


def test_contributions_are_saved_with_the_accepted_rounds(tmp_path):
    run = start(tmp_path, rounds=3)
    for record in run:
        for client in record.cohort:
            run.state.contributed[client] = record.round + client / 8
            run.state.changed.add(client)
    start(tmp_path, rounds=4).run()
    found = Checkpoints(tmp_path).latest().state
    earlier = {c: v for c, v in run.state.contributed.items() if v < 3}
    assert {c: found.contributed[c] for c in earlier} == earlier


def test_a_save_costs_no_more_with_a_million_clients_than_with_a_thousand(tmp_path):
    """CPU time and bytes of a checkpoint after the first, which writes them all."""
    from time import process_time

    cost = {}
    for clients in (1_000, 1_000_000):
        run = start(tmp_path / str(clients), rounds=1)
        run.run()
        place, names = Checkpoints(tmp_path / str(clients)), run._server._names
        place.open()
        record, state = place.latest().record, place.latest().state
        state.last_accepted = dict.fromkeys(range(clients), 0)
        seconds, sizes = [], []
        for round in range(2, 9):
            state.round = round
            state.changed.update(range(round, round + 10))
            before = sum(path.stat().st_size for path in place.directory.glob("ledger-*"))
            if round == 2:
                place._ledger = type(place._ledger)(place.directory)  # it writes everybody
            began = process_time()
            place.save(state, record, config={}, names=names)
            seconds.append(process_time() - began)
            grown = sum(path.stat().st_size for path in place.directory.glob("ledger-*")) - before
            files = place.directory.glob(f"round-{round:08}.*")
            sizes.append(grown + sum(path.stat().st_size for path in files))
        cost[clients] = (min(seconds[1:]), max(sizes[1:]))
        assert len(place.latest().state.last_accepted) == clients
    (little, small), (much, large) = cost.values()
    assert large <= small + 100
    assert much < 3 * little + 0.01


def run_and_exit(directory: Path, last: int) -> None:
    """Run, in a process of its own, which ends before its so many-th operation on a file."""
    count = 0

    def dying(original):
        def operation(*arguments, **named):
            nonlocal count
            count += 1
            if count == last:
                os._exit(9)
            return original(*arguments, **named)

        return operation

    for owner, names in ((os, ["fsync"]), (Path, ["open", "replace", "unlink", "mkdir"])):
        for name in names:
            setattr(owner, name, dying(getattr(owner, name)))
    start(directory, rounds=3).run()


@pytest.mark.programs(seconds=60)
@pytest.mark.parametrize("slack", [100_000, -8])
def test_a_server_killed_before_any_operation_on_a_file_is_resumed_bit_for_bit(
    tmp_path, monkeypatch, slack
):
    """Every fifth of them, also where the ledger is written anew again and again."""
    monkeypatch.setattr(ledger, "SLACK", slack)
    expected, _ = whole(rounds=3)
    last, code = slack % 5, 9
    while code:
        last += 5
        code = forked(run_and_exit, tmp_path / "run", last)
        assert code in (0, 9)
        assert same(finished(tmp_path / "run", rounds=3), expected), last
        shutil.rmtree(tmp_path / "run")
    assert last > 50


def manifest_of(directory: Path, round: int) -> Path:
    return directory / f"round-{round:08}.json"


def resealed(path: Path, change) -> None:
    """Change a manifest and give it the hash that fits."""
    manifest = json.loads(path.read_text())["manifest"]
    change(manifest)
    path.write_bytes(_sealed(manifest))


@pytest.mark.parametrize(
    ("format", "said"),
    [(FORMAT + 1, "a newer fedlada .*update"), (1, "an older fedlada .*finish")],
)
def test_a_checkpoint_of_another_format_is_not_called_damaged(tmp_path, format, said):
    start(tmp_path, rounds=3).run()
    resealed(manifest_of(tmp_path, 3), lambda manifest: manifest.update(format=format))
    with pytest.raises(CheckpointError, match=f"written by {said}") as error:
        start(tmp_path, rounds=4)
    assert "delete" not in str(error.value)


def test_files_of_somebody_else_in_the_directory_are_left_alone(tmp_path):
    start(tmp_path, rounds=3).run()
    names = ["round-00000002 (copy).json", "round-x.json", "notes.json", "mine.part"]
    names += ["round-00000002 (copy).safetensors", "ledger-old.bin", "round-.safetensors"]
    for name in names:
        (tmp_path / name).write_text("mine")
    assert Checkpoints(tmp_path).rounds() == [2, 3]
    start(tmp_path).run()
    assert Checkpoints(tmp_path).rounds() == [5, 6]
    assert all((tmp_path / name).read_text() == "mine" for name in names)


DAMAGE = {
    "deep": lambda path: manifest_of(path, 3).write_text("[" * 200_000),
    "a list": lambda path: manifest_of(path, 3).write_text("[]"),
    "text": lambda path: manifest_of(path, 3).write_text('"manifest"'),
    "not utf-8": lambda path: manifest_of(path, 3).write_bytes(b"\xff\xfe\xfa"),
    "lists for tables": lambda path: resealed(manifest_of(path, 3), lambda m: m.update(history=[])),
    "no names": lambda path: resealed(manifest_of(path, 3), lambda m: m.pop("names")),
    "no vectors": lambda path: resealed(
        manifest_of(path, 3), lambda m: m.update(vectors=["x", "unheard of"])
    ),
}


def header(path: Path) -> None:
    """A vectors file that is no safetensors file, with a hash that fits."""
    content = b"\xff" * 100
    (path / "round-00000003.safetensors").write_bytes(content)
    resealed(manifest_of(path, 3), lambda m: m.update(blake2b=blake2b(content).hexdigest()))


@pytest.mark.parametrize("how", [*DAMAGE.values(), header], ids=[*DAMAGE, "header"])
def test_whatever_is_wrong_with_a_checkpoint_the_one_before_is_tried(tmp_path, how):
    start(tmp_path, rounds=3).run()
    how(tmp_path)
    with pytest.warns(UserWarning, match="the checkpoint of round 3 .* is damaged"):
        again = start(tmp_path)
    assert again.resumed.round == 2


def test_damage_to_the_only_checkpoint_says_what_to_do_and_does_not_say_delete(tmp_path):
    start(tmp_path, rounds=1).run()
    manifest_of(tmp_path, 1).write_text("{")
    with (
        pytest.warns(UserWarning, match="is damaged"),
        pytest.raises(CheckpointError, match=r"Restore its files .*another directory") as error,
    ):
        start(tmp_path)
    assert "delete" not in str(error.value)


@pytest.mark.parametrize("algorithm", ["fedavg", "scaffold"])
def test_a_directory_deleted_under_a_run_is_said_to_be_gone(tmp_path, algorithm):
    run = iter(start(tmp_path / "run", algorithm=algorithm))
    next(run)
    shutil.rmtree(tmp_path / "run")
    with pytest.raises(FedladaError, match=r"is gone: it was\s+deleted or moved"):
        next(run)
