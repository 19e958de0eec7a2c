"""Handwritten digits of 8x8 pixels, included in scikit-learn."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor

from ..errors import missing_extra
from .augment import Statistics
from .examples import Images
from .source import Source, Split

__all__ = ["DIGITS", "load"]

STATISTICS = Statistics(mean=(0.3054,), std=(0.3760,))
FILE = "datasets/data/digits.csv.gz"
"""Where scikit-learn keeps the digits: on each line the pixels, from 0 to 16, and the label."""
TEST = 360


def load(split: Split) -> Images:
    """Load the 1,437 training or the 360 test images."""
    numbers = _numbers()
    pixels, labels = numbers[:, :-1].reshape(-1, 1, 8, 8), numbers[:, -1].long()
    train, test = _divided(labels)
    rows = train if split == "train" else test
    return Images(
        inputs=(pixels * 255 / 16).round().to(torch.uint8)[rows],
        labels=labels[rows],
        classes=tuple(str(label) for label in range(10)),
        statistics=STATISTICS,
    )


def _numbers() -> Tensor:
    """Return the lines of scikit-learn's file, in float64.

    The file is read directly, because importing scikit-learn takes more than a second, in each
    process of a node.
    """
    found = find_spec("sklearn")
    file = Path(found.origin).parent / FILE if found is not None and found.origin else None
    if file is not None and file.is_file():
        import numpy

        return torch.from_numpy(numpy.loadtxt(file, delimiter=","))
    try:
        from sklearn.datasets import load_digits
    except ModuleNotFoundError as error:
        raise missing_extra(error, "fedlada.data", "fedlada[data]") from error
    digits = load_digits()
    labels = torch.from_numpy(digits.target).double()
    return torch.cat([torch.from_numpy(digits.data), labels[:, None]], dim=1)


def _divided(labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return the rows of the training and of the test images.

    Scikit-learn defines no split of the digits.  This is that of ``train_test_split``, stratified
    with ``random_state=0``, which draws from numpy's frozen legacy generator: it is the same on
    every machine and changes no global generator.
    """
    import numpy

    random = numpy.random.RandomState(0)
    counts = labels.bincount().numpy()
    shares = counts / len(labels) * (len(labels) - TEST)
    training = shares.astype(int)
    rest, missing = shares - training, len(labels) - TEST - int(training.sum())
    for value in sorted({*rest}, reverse=True):
        (tied,) = (rest == value).nonzero()
        if not missing:
            break
        chosen = random.choice(tied, size=min(len(tied), missing), replace=False)
        training[chosen] += 1
        missing -= len(chosen)
    train: list[int] = []
    test: list[int] = []
    for label, count in enumerate(training):
        (rows,) = (labels.numpy() == label).nonzero()
        shuffled = rows[random.permutation(len(rows))]
        train += shuffled[:count].tolist()
        test += shuffled[count:].tolist()
    return torch.from_numpy(random.permutation(train)), torch.from_numpy(random.permutation(test))


DIGITS = Source(
    name="digits", load=load, statistics=STATISTICS, too_small_for=("lenet", "resnet18")
)
