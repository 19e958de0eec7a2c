"""A small decoder, as GPT is one: it predicts each next byte of a text from those before it."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..errors import require
from .attention import blocks
from .shapes import Shaped

__all__ = ["Decoder", "make"]

NAME = "decoder"


def make(data: Shaped, *, width: int = 48, layers: int = 2, heads: int = 3) -> Decoder:
    """Make a decoder for windows of a text."""
    require(
        len(data.shape) == 1,
        f"decoder takes rows of whole numbers, such as windows of a text, but one input has shape"
        f" {data.shape}; choose another model, such as mlp",
    )
    return Decoder(data.outputs, context=data.shape[0], width=width, layers=layers, heads=heads)


class Decoder(nn.Module):
    """A transformer that predicts the next of a row of symbols, such as bytes.

    Args:
        symbols: the number of different symbols.
        context: the largest length of a row.
        width: the number of features of each position.
        layers: the number of blocks.
        heads: the number of attention heads of each block, which divides the width.
    """

    def __init__(
        self,
        symbols: int = 128,
        *,
        context: int = 32,
        width: int = 48,
        layers: int = 2,
        heads: int = 3,
    ) -> None:
        super().__init__()
        self.embed = nn.Embedding(symbols, width)
        self.position = nn.Parameter(torch.zeros(context, width))
        self.blocks = blocks(layers, width, heads, causal=True)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, symbols, bias=False)
        for weight in (self.embed.weight, self.head.weight):
            nn.init.normal_(weight, std=0.02)

    def forward(self, symbols: Tensor) -> Tensor:
        """Map symbols [B, T] to logits [B, symbols, T], as ``cross_entropy`` takes them."""
        x = self.embed(symbols) + self.position[: symbols.shape[1]]
        logits: Tensor = self.head(self.norm(self.blocks(x)))
        return logits.transpose(1, 2)
