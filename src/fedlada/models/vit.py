"""A small vision transformer (Dosovitskiy et al., 2021) for small images.

An image is cut into square patches, each of them a position of the transformer. The classes are
read from the mean over all positions, and there is no class token.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..errors import require
from .attention import blocks
from .shapes import Shaped, image_shape

__all__ = ["ViT", "make"]

NAME = "vit"


def make(data: Shaped, *, patch: int = 4, width: int = 48, layers: int = 2, heads: int = 3) -> ViT:
    """Make a vision transformer for the images of a training set."""
    channels, size = image_shape(data, "vit")
    return ViT(
        data.outputs,
        channels=channels,
        size=size,
        patch=patch,
        width=width,
        layers=layers,
        heads=heads,
    )


class ViT(nn.Module):
    """A vision transformer.

    Args:
        classes: the number of outputs.
        channels: the number of channels of the input images.
        size: height and width of the input images.
        patch: height and width of a patch, which divides the size.
        width: the number of features of each patch.
        layers: the number of blocks.
        heads: the number of attention heads of each block, which divides the width.
    """

    def __init__(
        self,
        classes: int = 10,
        *,
        channels: int = 3,
        size: int = 32,
        patch: int = 4,
        width: int = 48,
        layers: int = 2,
        heads: int = 3,
    ) -> None:
        super().__init__()
        require(
            patch > 0 and size % patch == 0,
            f"model.patch is {patch}, and images have {size} x {size} pixels; it must divide"
            f" {size}",
        )
        self.patch = nn.Conv2d(channels, width, patch, stride=patch)
        self.position = nn.Parameter(0.02 * torch.randn((size // patch) ** 2, width))
        self.blocks = blocks(layers, width, heads, causal=False)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Map images [B, channels, size, size] to logits [B, classes]."""
        x = self.patch(images).flatten(2).transpose(1, 2) + self.position
        logits: Tensor = self.head(self.norm(self.blocks(x)).mean(1))
        return logits
