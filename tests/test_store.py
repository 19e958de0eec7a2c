"""What a client keeps becomes its own only when its reply was accepted."""

import pytest
import torch

from fedlada import DiskStore, MemoryStore
from fedlada.algorithms import Vector, Vectors


def kept(value: float) -> Vectors:
    return Vectors(c_i=Vector([torch.full((2,), value), torch.full((1, 3), -value)]))


@pytest.fixture(params=["memory", "disk"])
def store(request, tmp_path):
    return MemoryStore() if request.param == "memory" else DiskStore(tmp_path)


def test_nothing_is_kept_for_a_client_that_never_took_part(store):
    assert not store.load(5)


def test_only_accepted_clients_keep_what_they_staged(store):
    for client in (1, 2):
        store.stage(client, 0, kept(client))
    store.commit(0, [1])
    assert store.load(1).c_i.equal(kept(1).c_i)
    assert not store.load(2)
    store.stage(1, 1, kept(9))
    store.commit(1, [])
    store.commit(2, [1])
    assert store.load(1).c_i.equal(kept(1).c_i), "a dropped reply leaves the old vectors"


def test_what_was_staged_in_another_round_is_not_committed(store):
    store.stage(1, 0, kept(1))
    store.commit(1, [1])
    assert not store.load(1)
    assert store.round(1) == -1


def test_the_round_is_kept_with_the_vectors(store):
    store.stage(1, 4, kept(1))
    store.commit(4, [1])
    assert store.round(1) == 4


def test_what_is_staged_on_disk_waits_for_its_commit_in_a_new_process(tmp_path):
    DiskStore(tmp_path).stage(1, 0, kept(1))
    DiskStore(tmp_path).commit(0, [1])
    assert DiskStore(tmp_path).load(1).c_i.equal(kept(1).c_i)
