"""A client goes on from what it kept when its reply was last accepted, whatever happened since."""

import os
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings, strategies as st

from fedlada.algorithms import Vector, Vectors
from fedlada.client.store import NEVER, LostState, needless
from fedlada.engines import DiskStore, MemoryStore
from fedlada.errors import FedladaError

RUN = "a"


def kept(value: float) -> Vectors:
    return Vectors(c_i=Vector([torch.full((2,), float(value)), torch.full((1, 3), -float(value))]))


@pytest.fixture(params=["memory", "disk"])
def store(request, tmp_path):
    return MemoryStore() if request.param == "memory" else DiskStore(tmp_path)


def test_nothing_is_kept_for_a_client_that_never_took_part(store):
    assert not store.load(5, (RUN, NEVER))


def test_a_client_goes_on_from_its_last_accepted_reply(store):
    store.stage(1, (RUN, 0), kept(1))
    store.stage(1, (RUN, 4), kept(4))  # that reply was lost
    store.settle(1, (RUN, 0), resumable_from=5)
    assert store.load(1, (RUN, 0)).c_i.equal(kept(1).c_i)
    with pytest.raises(LostState, match=r"reply of round 4, but .* of the run: 0"):
        store.load(1, (RUN, 4))


def test_a_client_of_which_nothing_was_accepted_starts_with_nothing(store):
    store.stage(1, (RUN, 0), kept(1))
    store.settle(1, (RUN, NEVER), resumable_from=1)
    assert not store.load(1, (RUN, NEVER))


def test_another_run_neither_uses_nor_loses_what_a_run_left(store):
    store.stage(1, ("b", 3), kept(3))
    with pytest.raises(LostState, match="of the run: none"):
        store.load(1, (RUN, 3))
    store.settle(1, (RUN, NEVER), resumable_from=0)
    assert not store.load(1, (RUN, NEVER))
    assert store.load(1, ("b", 3)).c_i.equal(kept(3).c_i)


def test_what_a_run_left_on_disk_is_forgotten_in_time(tmp_path: Path):
    store = DiskStore(tmp_path)
    store.stage(1, ("b", 3), kept(3))
    store.stage(1, ("c", 3), kept(3))
    os.utime(tmp_path / "1" / "b-3.pt", (0, 0))
    store.settle(1, (RUN, NEVER), resumable_from=0)
    assert [path.name for path in (tmp_path / "1").iterdir()] == ["c-3.pt"]


def test_what_is_on_disk_is_there_in_a_new_process(tmp_path: Path):
    DiskStore(tmp_path).stage(1, (RUN, 0), kept(1))
    assert DiskStore(tmp_path).load(1, (RUN, 0)).c_i.equal(kept(1).c_i)


def test_a_file_half_written_is_not_there(tmp_path: Path):
    store = DiskStore(tmp_path)
    store.stage(1, (RUN, 0), kept(1))
    (tmp_path / "1" / f"{RUN}-1.part").write_bytes(b"half")
    assert store.load(1, (RUN, 0)).c_i.equal(kept(1).c_i)


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 3), st.booleans()), max_size=30))
@settings(max_examples=300, deadline=None)
def test_every_version_a_resumed_run_asks_for_is_there(events):
    """A client in a run that is checkpointed, killed and resumed at random."""
    versions: set[tuple[str, int]] = set()
    round, last, saved = 0, NEVER, [(0, NEVER)]
    for accepted, back, checkpoint in events:
        if back and len(saved) > 1:  # killed; the newest checkpoints may be damaged
            del saved[-min(back, len(saved) - 1) :]
            round, last = saved[-1]
        versions -= set(needless(versions, (RUN, last), saved[0][0]))
        assert last == NEVER or (RUN, last) in versions, "the client has what the server names"
        assert len(versions) <= 2 + round - saved[0][0], "and little else"
        versions.add((RUN, round))
        last = round if accepted else last
        round += 1
        if checkpoint:
            saved = [*saved, (round, last)][-2:]


def broken(content: bytes, how: str) -> list[bytes]:
    """The ways in which a disk may spoil a file, each a few times over the file."""
    middle = len(content) // 2
    if how == "flipped":
        places = range(0, len(content), max(1, len(content) // 200))
        return [content[:p] + bytes([content[p] ^ 0x40]) + content[p + 1 :] for p in places]
    if how == "torn":
        return [content[:end] for end in (1, 7, 20, 41, middle, len(content) - 1)]
    return [b"" if how == "empty" else b"\0" * len(content)]


@pytest.mark.parametrize("how", ["flipped", "torn", "empty", "zeros"])
def test_a_file_that_is_not_what_was_written_is_noticed_and_named(tmp_path: Path, how):
    store = DiskStore(tmp_path)
    store.stage(7, (RUN, 3), kept(1))
    file = tmp_path / "7" / f"{RUN}-3.pt"
    for content in broken(file.read_bytes(), how):
        file.write_bytes(content)
        with pytest.raises(LostState, match=r"client 7 kept in round 3 are damaged") as said:
            store.load(7, (RUN, 3))
        assert str(file) in str(said.value)
        assert "Restore that file" in str(said.value)


def test_other_files_are_left_alone_and_those_of_a_killed_write_are_not(tmp_path: Path):
    store = DiskStore(tmp_path)
    store.stage(1, (RUN, 0), kept(1))
    strays = {"notes-old.pt", "notes.txt", "a-1 (copy).pt", "a-x.pt"}
    for name in strays:
        (tmp_path / "1" / name).write_bytes(b"mine")
    (tmp_path / "1" / f"{RUN}-1.pt.part").write_bytes(b"half")
    store.settle(1, (RUN, 0), resumable_from=0)
    assert store.load(1, (RUN, 0)).c_i.equal(kept(1).c_i)
    assert {path.name for path in (tmp_path / "1").iterdir()} == {f"{RUN}-0.pt", *strays}


@pytest.mark.parametrize("where", ["os.fsync", "pathlib.Path.mkdir"])
def test_on_a_full_disk_the_client_and_the_file_are_named(tmp_path: Path, monkeypatch, where):
    store = DiskStore(tmp_path)

    def full(*_, **__):
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(where, full)
    with pytest.raises(FedladaError, match=r"client 7 .*a-3\.pt \(No space left.*Free disk space"):
        store.stage(7, (RUN, 3), kept(1))


def test_a_directory_that_was_deleted_is_not_blamed_on_the_client(tmp_path: Path):
    store = DiskStore(tmp_path / "clients")
    store.stage(1, (RUN, 0), kept(1))
    (tmp_path / "clients" / "1" / f"{RUN}-0.pt").unlink()
    (tmp_path / "clients" / "1").rmdir()
    (tmp_path / "clients").rmdir()
    for use in (lambda: store.load(1, (RUN, 0)), lambda: store.stage(1, (RUN, 1), kept(2))):
        with pytest.raises(LostState, match=r"clients, where client 1 .* deleted or moved"):
            use()
