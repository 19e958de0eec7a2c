"""Handwritten digits of 8x8 pixels, included in scikit-learn."""

from __future__ import annotations

import torch

from ..errors import missing_extra
from .augment import Statistics
from .examples import Images
from .source import Source, Split

__all__ = ["DIGITS", "load"]

STATISTICS = Statistics(mean=(0.3054,), std=(0.3760,))


def load(split: Split) -> Images:
    """Load the 1,437 training or the 360 test images."""
    try:
        from sklearn.datasets import load_digits
        from sklearn.model_selection import train_test_split
    except ModuleNotFoundError as error:
        raise missing_extra(error, "fedlada.data", "fedlada[data]") from error

    digits = load_digits()
    # Scikit-learn defines no split of the digits. A fixed random_state uses numpy's frozen legacy
    # generator, so the split is the same on every machine and changes no global generator.
    train, test = train_test_split(
        range(len(digits.target)), test_size=360, stratify=digits.target, random_state=0
    )
    rows = torch.tensor(train if split == "train" else test)
    # Scikit-learn's pixels range from 0 to 16.
    inputs = (torch.from_numpy(digits.images) * 255 / 16).round().to(torch.uint8).unsqueeze(1)
    return Images(
        inputs=inputs[rows],
        labels=torch.from_numpy(digits.target)[rows].long(),
        classes=tuple(str(name) for name in digits.target_names),
        statistics=STATISTICS,
    )


DIGITS = Source(
    name="digits", load=load, statistics=STATISTICS, too_small_for=("lenet", "resnet18")
)
