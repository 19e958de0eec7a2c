"""The block of transformers (Vaswani et al., 2017), with normalisation before each half.

    x = x + Out(Attention(Norm(x)))
    x = x + Down(GELU(Up(Norm(x))))

Layer normalisation has no running statistics, and there is no dropout, so a block computes the
same in training and in evaluation.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.functional import gelu, scaled_dot_product_attention

from ..errors import require

__all__ = ["Block", "blocks"]


class Block(nn.Module):
    """Self-attention and a perceptron, each added to its input.

    Args:
        width: the number of features of each position.
        heads: the number of attention heads, which divides the width.
        causal: whether a position sees only itself and those before it.
    """

    def __init__(self, width: int, heads: int, *, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Map [B, T, width] to the same shape."""
        batch, length, width = x.shape
        heads = (batch, length, 3, self.heads, width // self.heads)
        q, k, v = self.qkv(self.norm1(x)).view(heads).permute(2, 0, 3, 1, 4)
        seen = scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        x = x + self.out(seen.transpose(1, 2).reshape(batch, length, width))
        result: Tensor = x + self.down(gelu(self.up(self.norm2(x))))
        return result


def blocks(layers: int, width: int, heads: int, *, causal: bool) -> nn.Sequential:
    """Return this number of blocks, one after another."""
    for name, value in (("layers", layers), ("width", width), ("heads", heads)):
        require(value > 0, f"model.{name} is {value}; it must be positive")
    require(
        width % heads == 0,
        f"model.width is {width} and model.heads is {heads}; the width must be a multiple of the"
        " number of heads",
    )
    return nn.Sequential(*(Block(width, heads, causal=causal) for _ in range(layers)))
