"""A labelled set of images, decoded and in memory."""

from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Images:
    """Images as bytes, with their labels.

    Args:
        inputs: uint8, [N, C, H, W].
        labels: int64, [N], each an index into ``classes``.
        classes: the names of the classes.
    """

    inputs: Tensor = field(repr=False)
    labels: Tensor = field(repr=False)
    classes: tuple[str, ...]

    def __post_init__(self) -> None:
        """Check shapes and types once, so that nobody downstream has to."""
        if self.inputs.dim() != 4 or self.inputs.dtype != torch.uint8:
            raise ValueError(
                f"inputs are {self.inputs.dtype} of shape {tuple(self.inputs.shape)}; "
                "Images holds torch.uint8 of shape [N, C, H, W]. "
                "Convert them, and leave scaling to Augment."
            )
        if self.labels.dim() != 1 or self.labels.dtype != torch.int64:
            raise ValueError(
                f"labels are {self.labels.dtype} of shape {tuple(self.labels.shape)}; "
                "Images holds torch.int64 of shape [N]. Convert them with labels.long().flatten()."
            )
        if len(self.inputs) != len(self.labels):
            raise ValueError(
                f"There are {len(self.inputs)} inputs and {len(self.labels)} labels; "
                "give every image exactly one label."
            )
        if len(self.labels) and not 0 <= self.labels.min() <= self.labels.max() < len(self.classes):
            raise ValueError(
                f"labels run from {self.labels.min()} to {self.labels.max()}, but there are "
                f"{len(self.classes)} classes; number the labels from 0 to {len(self.classes) - 1}."
            )

    def __len__(self) -> int:
        """Count the images."""
        return len(self.labels)
