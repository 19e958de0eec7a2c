"""CIFAR-10 and CIFAR-100, read with Hugging Face datasets.

They are read from Parquet files in a local directory if the option ``directory`` or the
environment variable FEDLADA_DATA names one, and from the Hugging Face hub otherwise. The files and
the hub have the same columns, so the same code decodes both. Images are decoded once per machine
and then read from a cache: see ``fedlada.data.cache``.
"""

from __future__ import annotations

import os
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import torch

from ..errors import missing_extra
from .augment import Statistics
from .cache import cached
from .examples import Images
from .source import Source, Split

__all__ = ["CIFAR10", "CIFAR100"]


def cifar10(split: Split, *, directory: str | None = None) -> Images:
    """Load 50,000 training or 10,000 test images of ten classes."""
    images = _load("cifar10", split, directory, hub="uoft-cs/cifar10", label="label")
    return replace(images, statistics=CIFAR10.statistics)


def cifar100(split: Split, *, directory: str | None = None) -> Images:
    """Load 50,000 training or 10,000 test images of a hundred classes."""
    images = _load("cifar100", split, directory, hub="uoft-cs/cifar100", label="fine_label")
    return replace(images, statistics=CIFAR100.statistics)


CIFAR10 = Source(
    name="cifar10",
    load=cifar10,
    statistics=Statistics(mean=(0.4914, 0.4822, 0.4465), std=(0.2470, 0.2435, 0.2616)),
    model="lenet",
    crop=4,
)
CIFAR100 = Source(
    name="cifar100",
    load=cifar100,
    statistics=Statistics(mean=(0.5071, 0.4866, 0.4409), std=(0.2673, 0.2564, 0.2762)),
    model="lenet",
    crop=4,
)


def _load(name: str, split: Split, directory: str | None, *, hub: str, label: str) -> Images:
    place = directory or os.environ.get("FEDLADA_DATA")
    if not place:
        rows = _datasets().load_dataset(hub, split=split)
        files = [Path(file["filename"]) for file in rows.cache_files]
        return cached(f"{name}-{split}", files, lambda: _decode(rows, label))
    file = Path(place) / name / f"{split}.parquet"
    if not file.is_file():
        raise FileNotFoundError(
            f"{file} does not exist; directory or FEDLADA_DATA must hold it. "
            f"Put it there, or give neither to read {hub} from the Hugging Face hub."
        )

    def decode() -> Images:
        # Streaming avoids a second copy of the file in the cache of Hugging Face.
        files = {"data_files": str(file), "split": "train", "streaming": True}
        return _decode(_datasets().load_dataset("parquet", **files), label)

    return cached(f"{name}-{split}", [file], decode)


def _datasets() -> Any:
    """Import Hugging Face datasets and Pillow late: it takes seconds, and a cache needs neither."""
    try:
        import datasets
        import PIL.Image  # noqa: F401
    except ModuleNotFoundError as error:
        raise missing_extra(error, "fedlada.data", "fedlada[data]") from error
    return datasets


def _decode(rows: Any, label: str) -> Images:
    """Decode every image of a Hugging Face dataset."""
    from PIL import Image

    # Hugging Face's decoder makes an array of Python objects; this code decodes to bytes directly.
    rows = rows.cast_column("img", _datasets().Image(decode=False))
    pixels, labels = bytearray(), list[int]()
    for batch in rows.iter(batch_size=1000):
        for image in batch["img"]:
            # The hub stores PNG; other files may hold lossless WebP.
            with Image.open(BytesIO(image["bytes"]), formats=("PNG", "WEBP")) as decoded:
                pixels += decoded.convert("RGB").tobytes()
        labels += batch[label]
    inputs = torch.frombuffer(pixels, dtype=torch.uint8).view(len(labels), 32, 32, 3)
    return Images(
        inputs=inputs.permute(0, 3, 1, 2).contiguous(),
        labels=torch.tensor(labels),
        classes=tuple(rows.features[label].names),
    )
