"""A labelled set of decoded images in memory."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ..errors import require
from .augment import Statistics
from .examples import Examples

__all__ = ["Images"]


@dataclass(frozen=True, eq=False)
class Images(Examples):
    """Images as bytes, with their labels.

    Args:
        inputs: uint8, [N, C, H, W].
        labels: int64, [N], each an index into ``classes``.
        classes: the names of the classes.
        owners: the owner of each image, as N whole numbers or N words.
        prepare: must be None, because experiments normalise and augment images with ``Augment``.
        statistics: the mean and standard deviation of each channel; experiments require them.
    """

    statistics: Statistics | None = None

    def __post_init__(self) -> None:
        """Check shapes and types here, so that other code need not."""
        require(
            self.inputs.dim() == 4 and self.inputs.dtype == torch.uint8,
            f"inputs are {self.inputs.dtype} of shape {tuple(self.inputs.shape)}; "
            "Images holds torch.uint8 of shape [N, C, H, W]. "
            "Convert them, and leave scaling to Augment.",
        )
        require(
            self.labels.dim() == 1 and self.labels.dtype == torch.int64,
            f"labels are {self.labels.dtype} of shape {tuple(self.labels.shape)}; "
            "Images holds torch.int64 of shape [N]. Convert them with labels.long().flatten(), "
            "or use Examples for other labels.",
        )
        super().__post_init__()
        require(
            not len(self.labels)
            or bool(0 <= self.labels.min() <= self.labels.max() < len(self.classes)),
            f"labels run from {self.labels.min() if len(self.labels) else 0} to"
            f" {self.labels.max() if len(self.labels) else 0}, but there are "
            f"{len(self.classes)} classes; number the labels from 0 to {len(self.classes) - 1}.",
        )
        require(
            self.prepare is None,
            "Images take statistics and no prepare: use Examples for inputs that are prepared"
            " in another way.",
        )
