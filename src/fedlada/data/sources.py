"""Where images come from: CIFAR by way of Hugging Face datasets, digits by way of scikit-learn.

CIFAR is read from Parquet files in a local directory when one is given, by argument or in the
environment variable FEDLADA_DATA, and from the Hugging Face hub otherwise. Both have the same
columns, so both take the same way from there. Every image is decoded once: decoding it again
for each batch would cost more than training a small network on it.
"""

import os
from io import BytesIO
from pathlib import Path

import torch

from fedlada.data.extra import missing
from fedlada.data.images import Images

# The name on the hub, and the column that holds the label.
_CIFAR = {
    "cifar10": ("uoft-cs/cifar10", "label"),
    "cifar100": ("uoft-cs/cifar100", "fine_label"),
}
NAMES = (*_CIFAR, "digits")
SPLITS = ("train", "test")


def load(name: str, *, split: str, directory: str | os.PathLike[str] | None = None) -> Images:
    """Load one split of a named data set.

    Args:
        name: ``cifar10``, ``cifar100`` or ``digits``.
        split: ``train`` or ``test``.
        directory: holds ``cifar10/train.parquet`` and so on; by default the value of
            FEDLADA_DATA, and without that the Hugging Face hub. Digits need neither.
    """
    if name not in NAMES:
        raise ValueError(f"There is no data set {name!r}; choose one of {', '.join(NAMES)}.")
    if split not in SPLITS:
        raise ValueError(f"There is no split {split!r}; choose one of {', '.join(SPLITS)}.")
    if name == "digits":
        return _digits(split)
    return _cifar(name, split=split, directory=directory or os.environ.get("FEDLADA_DATA"))


def _cifar(name: str, *, split: str, directory: str | os.PathLike[str] | None) -> Images:
    try:
        from datasets import Image, load_dataset
        from PIL import Image as Pillow
    except ModuleNotFoundError as error:
        raise missing(error) from error

    hub, label = _CIFAR[name]
    if directory is None:
        rows = load_dataset(hub, split=split)
    else:
        file = Path(directory) / name / f"{split}.parquet"
        if not file.is_file():
            raise FileNotFoundError(
                f"{file} does not exist; directory or FEDLADA_DATA must hold it. "
                f"Put it there, or give neither to read {hub} from the Hugging Face hub."
            )
        # Streaming spares a second copy of the file in the cache of Hugging Face.
        rows = load_dataset("parquet", data_files=str(file), split="train", streaming=True)

    # Hugging Face's own decoding makes an array of Python objects; this goes straight to bytes.
    rows = rows.cast_column("img", Image(decode=False))
    pixels, labels = bytearray(), list[int]()
    for batch in rows.iter(batch_size=1000):
        for image in batch["img"]:
            # The hub stores PNG; other files may hold lossless WebP.
            with Pillow.open(BytesIO(image["bytes"]), formats=("PNG", "WEBP")) as decoded:
                pixels += decoded.convert("RGB").tobytes()
        labels += batch[label]
    inputs = torch.frombuffer(pixels, dtype=torch.uint8).view(len(labels), 32, 32, 3)
    return Images(
        inputs=inputs.permute(0, 3, 1, 2).contiguous(),
        labels=torch.tensor(labels),
        classes=tuple(rows.features[label].names),
    )


def _digits(split: str) -> Images:
    try:
        from sklearn.datasets import load_digits
        from sklearn.model_selection import train_test_split
    except ModuleNotFoundError as error:
        raise missing(error) from error

    digits = load_digits()
    # The library has no split of its own. A fixed random_state draws from numpy's frozen
    # legacy generator, so the split is the same everywhere and leaves global generators alone.
    train, test = train_test_split(
        range(len(digits.target)), test_size=360, stratify=digits.target, random_state=0
    )
    rows = torch.tensor(train if split == "train" else test)
    # Scikit-learn's pixels are 0 to 16.
    inputs = (torch.from_numpy(digits.images) * 255 / 16).round().to(torch.uint8).unsqueeze(1)
    return Images(
        inputs=inputs[rows],
        labels=torch.from_numpy(digits.target)[rows].long(),
        classes=tuple(str(name) for name in digits.target_names),
    )
