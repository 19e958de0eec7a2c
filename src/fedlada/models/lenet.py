"""LeNet as in the paper's appendix: two convolutions and two linear layers.

The widths are LeNet-5's (6 and 16 channels, 120 hidden units); the paper does not print them.
The appendix replaces ReLU by smooth functions, because its theory assumes smoothness:

    GELU(x) = x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))
    SMU(x)  = (x + x erf(mu x)) / 2
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from ..errors import FedladaError, nearest, require
from .shapes import Shaped, image_shape

NAME = "lenet"

ACTIVATIONS = ("relu", "gelu", "smu")


def make(data: Shaped, *, activation: Literal["relu", "gelu", "smu"] = "relu") -> LeNet:
    """Make a LeNet for the images of a training set."""
    channels, size = image_shape(data, "lenet")
    return LeNet(data.outputs, channels=channels, size=size, activation=activation)


class SMU(nn.Module):
    """Smooth maximum unit, a smooth approximation of ReLU.

    The paper does not say which ``mu`` it used. ``1/sqrt(2)`` would be the exact GELU, and the
    1e6 of K. Biswas et al. ("SMU: smooth activation function for deep networks using smoothing
    maximum technique", 2021) is ReLU in float32. With 2, SMU is within 0.061 of ReLU everywhere
    and its second derivative stays below 2.3.
    """

    def __init__(self, mu: float = 2.0) -> None:
        super().__init__()
        require(mu > 0, f"mu is {mu}; it must be positive, and larger is closer to ReLU")
        self.mu = mu

    def forward(self, x: Tensor) -> Tensor:
        """Apply the function elementwise."""
        return 0.5 * x * (1 + torch.erf(self.mu * x))

    def extra_repr(self) -> str:
        """Show mu when the module is printed."""
        return f"mu={self.mu}"


class LeNet(nn.Module):
    """Two 5x5 convolutions, each with pooling, and two linear layers.

    Args:
        classes: the number of outputs.
        channels: the number of channels of the input images.
        size: height and width of the input images, at least 16.
        activation: ``relu``, ``gelu`` (with tanh, as in the paper) or ``smu``.
    """

    def __init__(
        self, classes: int = 10, *, channels: int = 3, size: int = 32, activation: str = "relu"
    ) -> None:
        super().__init__()
        require(
            size >= 16,
            f"size is {size}; LeNet needs images of at least 16 x 16 pixels, because nothing is"
            " left of smaller ones after two 5x5 convolutions with pooling: enlarge the images, or"
            " use another model",
        )
        self.conv1 = nn.Conv2d(channels, 6, kernel_size=5)
        self.conv2 = nn.Conv2d(6, 16, kernel_size=5)
        self.pool = nn.MaxPool2d(2)
        self.activation = _activation(activation)
        side = ((size - 4) // 2 - 4) // 2
        self.fc1 = nn.Linear(16 * side * side, 120)
        self.fc2 = nn.Linear(120, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Map images [B, channels, size, size] to logits [B, classes]."""
        # On a CPU, channels_last saves about 30 % of the time, most of it in pooling.
        x = x.contiguous(memory_format=torch.channels_last)
        x = self.pool(self.activation(self.conv1(x)))
        x = self.pool(self.activation(self.conv2(x)))
        x = self.activation(self.fc1(x.flatten(1)))
        logits: Tensor = self.fc2(x)
        return logits


def _activation(name: str) -> nn.Module:
    if name == "relu":
        return nn.ReLU()
    if name == "gelu":
        return nn.GELU(approximate="tanh")
    if name == "smu":
        return SMU()
    raise FedladaError(f"there is no activation {name!r}; {nearest(name, ACTIVATIONS)}")
