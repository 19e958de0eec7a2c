"""The named data sets, and a function that loads one by name.

A new one needs its file and one line here; its source says its name.
"""

from __future__ import annotations

from typing import Any

from ..errors import require
from .cifar import CIFAR10 as CIFAR10, CIFAR100 as CIFAR100
from .digits import DIGITS as DIGITS
from .examples import Examples
from .shakespeare import SHAKESPEARE as SHAKESPEARE
from .source import SPLITS, Source

__all__ = ["NAMES", "SOURCES", "STATISTICS", "load"]

SOURCES = {value.name: value for value in [*globals().values()] if isinstance(value, Source)}
NAMES = tuple(SOURCES)
STATISTICS = {name: s.statistics for name, s in SOURCES.items() if s.statistics is not None}


def load(name: str, *, split: str, **options: Any) -> Examples:
    """Load one split of a named data set.

    Args:
        name: ``cifar10``, ``cifar100``, ``digits`` or ``shakespeare``.
        split: ``train`` or ``test``.
        options: of the data set. CIFAR has ``directory``, which contains ``cifar10/train.parquet``
            and so on. The default is the environment variable FEDLADA_DATA; if that is not set,
            CIFAR is read from the Hugging Face hub.  :mod:`fedlada.data.shakespeare` has its own.
    """
    require(name in SOURCES, f"There is no data set {name!r}; choose one of {', '.join(NAMES)}.")
    require(split in SPLITS, f"There is no split {split!r}; choose one of {', '.join(SPLITS)}.")
    return SOURCES[name].load(split, **options)
