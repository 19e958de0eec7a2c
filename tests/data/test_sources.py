import random

import datasets
import numpy as np
import pytest
import torch

from fedlada.data import STATISTICS, load
from fedlada.data.digits import FILE
from pictures import PIXELS, rows


def assert_is_rows(images):
    assert torch.equal(images.inputs, torch.from_numpy(PIXELS).permute(0, 3, 1, 2))
    assert images.labels.tolist() == [1, 0, 1]
    assert images.classes == ("cat", "dog")


@pytest.mark.parametrize("by", ["argument", "environment"])
def test_a_directory_is_read_pixel_by_pixel(tmp_path, monkeypatch, by):
    (tmp_path / "cifar10").mkdir()
    rows("WEBP").to_parquet(tmp_path / "cifar10" / "train.parquet")
    monkeypatch.delenv("FEDLADA_DATA", raising=False)
    if by == "environment":
        monkeypatch.setenv("FEDLADA_DATA", str(tmp_path))
    directory = tmp_path if by == "argument" else None
    assert_is_rows(load("cifar10", split="train", directory=directory))


def test_without_a_directory_the_hub_is_asked(monkeypatch):
    asked = []

    def load_dataset(name, *, split):
        asked.append((name, split))
        return rows("PNG")

    monkeypatch.delenv("FEDLADA_DATA", raising=False)
    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    assert_is_rows(load("cifar10", split="test"))
    assert asked == [("uoft-cs/cifar10", "test")]


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"cifar100/test\.parquet does not exist"):
        load("cifar100", split="test", directory=tmp_path)


@pytest.mark.parametrize(("name", "split"), [("cifar11", "train"), ("cifar10", "valid")])
def test_unknown_names_are_answered_with_the_known_ones(name, split):
    with pytest.raises(ValueError, match=r"choose one of (cifar10, cifar100, digits|train, test)"):
        load(name, split=split)


@pytest.mark.parametrize("file", [FILE, "no such file"])
def test_digits_are_scikit_learns_split_in_two(file, monkeypatch):
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    monkeypatch.setattr("fedlada.data.digits.FILE", file)
    digits = load_digits()
    rows = train_test_split(
        range(len(digits.target)), test_size=360, stratify=digits.target, random_state=0
    )
    for split, chosen in zip(("train", "test"), rows, strict=True):
        images = load("digits", split=split)
        assert images.inputs.shape == (len(chosen), 1, 8, 8)
        original = torch.from_numpy(digits.images[chosen]) * 255 / 16
        assert torch.equal(images.inputs[:, 0], original.round().to(torch.uint8))
        assert torch.equal(images.labels, torch.from_numpy(digits.target[chosen]))
        assert images.classes == tuple(map(str, digits.target_names))


def test_digits_are_the_same_every_time_and_leave_global_generators_alone():
    before = random.getstate(), str(np.random.get_state()), torch.get_rng_state()
    first, second = load("digits", split="test"), load("digits", split="test")
    after = random.getstate(), str(np.random.get_state()), torch.get_rng_state()
    assert torch.equal(first.inputs, second.inputs)
    assert before[:2] == after[:2]
    assert torch.equal(before[2], after[2])


def test_statistics_are_those_of_the_training_digits():
    pixels = load("digits", split="train").inputs.double() / 255
    assert pixels.mean() == pytest.approx(STATISTICS["digits"].mean[0], abs=1e-4)
    assert pixels.std(correction=0) == pytest.approx(STATISTICS["digits"].std[0], abs=1e-4)
