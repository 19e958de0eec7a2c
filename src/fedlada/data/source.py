"""The declaration of a data set, which each data set makes in its file."""

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
    """A data set: how to load it, and the defaults of experiments that use it.

    Args:
        name: the name of the data set in an experiment's file; empty if it has none.
        load: called as ``load(split, **options)``, where ``split`` is ``train`` or ``test``; the
            options are its keyword-only parameters, each with an annotation and a default.
        statistics: the mean and standard deviation of each channel, if the data are images.
        model: the default model.
        partition: the default partition; ``natural`` if examples have owners by nature.
        task: the default task; None follows the labels.
        crop: the default of the largest random shift of images, in pixels.
        too_small_for: the models that need larger images.
    """

    name: str = ""
    load: Callable[..., Examples]
    statistics: Statistics | None = None
    model: str = "mlp"
    partition: str = "client-prior"
    task: str | None = None
    crop: int = 0
    too_small_for: tuple[str, ...] = ()
