"""A file of images is decoded once per machine, whoever asks and however many at once."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from fedlada.data import cache, cifar, load
from pictures import PIXELS, rows


@pytest.fixture
def source(tmp_path, monkeypatch) -> Path:
    directory = tmp_path / "data" / "cifar10"
    directory.mkdir(parents=True)
    rows("PNG").to_parquet(directory / "train.parquet")
    monkeypatch.setenv("FEDLADA_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    return directory / "train.parquet"


@pytest.fixture
def decoded(monkeypatch) -> list[str]:
    """What was decoded so far."""
    done, decode = [], cifar._decode

    def counted(images, label):
        done.append(label)
        return decode(images, label)

    monkeypatch.setattr(cifar, "_decode", counted)
    return done


def held(directory: Path) -> list[Path]:
    return sorted(path for path in directory.glob("*.pt*") if path.suffix != ".lock")


def test_the_second_time_nothing_is_decoded(source, decoded):
    first, second = load("cifar10", split="train"), load("cifar10", split="train")
    assert decoded == ["label"]
    assert torch.equal(first.inputs, torch.from_numpy(PIXELS).permute(0, 3, 1, 2))
    assert torch.equal(first.inputs, second.inputs)
    assert torch.equal(first.labels, second.labels)
    assert (first.classes, first.statistics) == (second.classes, second.statistics)
    assert len(held(source.parent)) == 1


def test_a_changed_file_is_decoded_again(source, decoded):
    load("cifar10", split="train")
    os.utime(source, ns=(1, 1))
    load("cifar10", split="train")
    assert len(decoded) == 2


def test_a_damaged_cache_is_decoded_again(source, decoded):
    load("cifar10", split="train")
    (place,) = held(source.parent)
    whole = place.read_bytes()
    for damage in (b"", b"garbage", whole[: len(whole) // 2]):
        place.unlink()  # what is mapped into memory is not to change
        place.write_bytes(damage)
        images = load("cifar10", split="train")
        assert torch.equal(images.inputs, torch.from_numpy(PIXELS).permute(0, 3, 1, 2))
    assert len(decoded) == 4


def test_beside_data_that_are_read_only_the_users_cache_is_used_by_root_too(
    source, decoded, tmp_path
):
    source.parent.chmod(0o555)
    for _ in range(2):
        load("cifar10", split="train")
    source.parent.chmod(0o755)
    assert len(decoded) == 1
    assert held(source.parent) == []
    assert len(held(tmp_path / "caches" / "fedlada")) == 1


def test_where_nothing_can_be_written_images_are_decoded_all_the_same(source, decoded, monkeypatch):
    monkeypatch.setattr(cache.os, "access", lambda path, mode: False)
    assert len(load("cifar10", split="train")) == len(PIXELS)
    assert len(decoded) == 1
    assert held(source.parent) == []


PROGRAM = """
import sys, time
from fedlada.data import cifar, load
decode = cifar._decode
def slowly(images, label):
    print("decoded", flush=True)
    time.sleep(1)
    return decode(images, label)
cifar._decode = slowly
sys.stdin.readline()
images = load("cifar10", split="train")
print(images.inputs.double().sum().item(), images.labels.tolist(), flush=True)
"""


@pytest.mark.programs(seconds=10)
def test_processes_that_ask_at_once_get_the_same_images_and_one_decodes(source):
    both = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    for process in both:
        process.stdin.write("\n")
        process.stdin.flush()
    printed = [process.communicate()[0].splitlines() for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert sum(line == "decoded" for lines in printed for line in lines) == 1
    assert printed[0][-1] == printed[1][-1]
    assert len(held(source.parent)) == 1
