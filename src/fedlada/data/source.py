"""What a data set declares of itself, in the one file that it is in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from .augment import Statistics
from .examples import Examples

__all__ = ["SPLITS", "Source", "Split"]

Split = Literal["train", "test"]
SPLITS: tuple[Split, ...] = ("train", "test")


@dataclass(frozen=True, kw_only=True)
class Source:
    """A data set: how to load it, and what goes with it unless an experiment says otherwise.

    Args:
        load: called as ``load(split, **options)`` with ``train`` or ``test``; its options are its
            keyword-only parameters, each with an annotation and a default.
        statistics: of the channels, if it holds images.
        model: the model that experiments use by default.
        crop: by how many pixels experiments shift images by default.
        too_small_for: models that need larger images.
    """

    load: Callable[..., Examples]
    statistics: Statistics | None = None
    model: str = "mlp"
    crop: int = 0
    too_small_for: tuple[str, ...] = ()
