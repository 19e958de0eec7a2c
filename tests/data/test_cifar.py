import os
from io import BytesIO

import pyarrow.parquet
import pytest
import torch
from PIL import Image

from fedlada.data import STATISTICS, load

pytestmark = pytest.mark.cifar(seconds=40)


@pytest.fixture(scope="module")
def directory():
    if not os.environ.get("FEDLADA_DATA"):
        pytest.fail(
            "FEDLADA_DATA is not set: point it at the directory that holds cifar10/train.parquet, "
            "cifar100/train.parquet and their test.parquet to run the CIFAR tests."
        )
    return os.environ["FEDLADA_DATA"]


@pytest.fixture(scope="module", params=["cifar10", "cifar100"])
def name(request):
    return request.param


@pytest.fixture(scope="module")
def train(directory, name):
    return load(name, split="train", directory=directory)


def test_classes_are_equally_large(train, name):
    classes = int(name.removeprefix("cifar"))
    assert len(train.classes) == classes
    assert train.inputs.shape == (50_000, 3, 32, 32)
    assert train.labels.bincount().tolist() == [50_000 // classes] * classes


def test_test_split_has_ten_thousand_images_of_the_same_classes(directory, train, name):
    test = load(name, split="test", directory=directory)
    assert test.classes == train.classes
    assert test.inputs.shape == (10_000, 3, 32, 32)
    assert test.labels.bincount().tolist() == [10_000 // len(test.classes)] * len(test.classes)


def test_pixels_are_those_pillow_decodes(directory, train, name):
    table = pyarrow.parquet.read_table(f"{directory}/{name}/train.parquet")
    label = "label" if name == "cifar10" else "fine_label"
    for row in (0, 1, 17, 999, 1000, 25_000, 49_999):
        image = Image.open(BytesIO(table["img"][row]["bytes"].as_py())).convert("RGB")
        for y, x in ((0, 0), (0, 31), (13, 7), (31, 31)):
            assert tuple(train.inputs[row, :, y, x].tolist()) == image.getpixel((x, y))
        assert train.labels[row] == table[label][row].as_py()


def test_rows_are_in_the_order_of_the_original_files(train, name):
    first = {"cifar10": ["frog", "truck", "truck"], "cifar100": ["cattle", "dinosaur", "apple"]}
    assert [train.classes[label] for label in train.labels[:3]] == first[name]


def test_statistics_are_those_of_the_training_set(train, name):
    values = torch.arange(256).double() / 255
    for channel in range(3):
        # Counting bytes needs no floating-point copy of the whole set.
        share = train.inputs[:, channel].flatten().bincount(minlength=256) / (50_000 * 32 * 32)
        mean = (share * values).sum()
        std = (share * (values - mean) ** 2).sum().sqrt()
        assert mean == pytest.approx(STATISTICS[name].mean[channel], abs=1e-4)
        assert std == pytest.approx(STATISTICS[name].std[channel], abs=1e-4)
