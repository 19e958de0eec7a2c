"""ResNet-18 with group normalisation (He et al., 2016; Wu and He, 2018).

Batch normalisation keeps running statistics that do not average meaningfully over clients with
different data; group normalisation has none. The paper uses two groups. Its simulator uses the
ImageNet stem even on 32x32 images; the usual CIFAR stem is the alternative.

Modules are named as in torchvision, so that parameters can be matched by name with torchvision's
and with the simulator's checkpoints. Therefore a GroupNorm is called ``bn1``.
"""

from __future__ import annotations

from typing import Literal

from torch import Tensor, nn
from torch.nn.functional import linear

from ..errors import require, require_known
from .shapes import Shaped, image_shape

NAME = "resnet18"

STEMS = ("imagenet", "cifar")


def make(
    data: Shaped, *, stem: Literal["imagenet", "cifar"] = "imagenet", groups: int = 2
) -> ResNet18:
    """Make a ResNet-18 for the images of a training set, which must have three channels."""
    channels, _ = image_shape(data, "resnet18")
    require(
        channels == 3, f"resnet18 takes images of 3 channels, not {channels}; choose another model."
    )
    return ResNet18(data.outputs, stem=stem, groups=groups)


class Conv3x3(nn.Conv2d):
    """A 3x3 convolution, padded by 1, that skips kernel taps which only multiply padding.

    If the output is a single pixel, as in the last layer behind the ImageNet stem on 32x32
    images, the convolution is a linear map by a part of the kernel. On a CPU this saves about a
    fifth of the time of a training step of the whole network.
    """

    def __init__(self, inside: int, outside: int, *, stride: int = 1) -> None:
        super().__init__(inside, outside, 3, stride=stride, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Convolve a batch of images."""
        height, width = x.shape[-2:]
        if max(height, width) > self.stride[0]:
            return super().forward(x)
        met = self.weight[:, :, 1 : 1 + height, 1 : 1 + width]
        return linear(x.flatten(1), met.flatten(1))[:, :, None, None]


class BasicBlock(nn.Module):
    """Two 3x3 convolutions with a shortcut."""

    def __init__(self, inside: int, outside: int, *, stride: int, groups: int) -> None:
        super().__init__()
        self.conv1 = Conv3x3(inside, outside, stride=stride)
        self.bn1 = nn.GroupNorm(groups, outside)
        self.conv2 = Conv3x3(outside, outside)
        self.bn2 = nn.GroupNorm(groups, outside)
        self.relu = nn.ReLU(inplace=True)
        self.downsample: nn.Module | None = None
        if inside != outside or stride != 1:
            self.downsample = nn.Sequential(
                nn.Conv2d(inside, outside, 1, stride=stride, bias=False),
                nn.GroupNorm(groups, outside),
            )

    def forward(self, x: Tensor) -> Tensor:
        """Add the block's output to its input, projected where the shapes differ."""
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        shortcut = x if self.downsample is None else self.downsample(x)
        result: Tensor = self.relu(out + shortcut)
        return result


class ResNet18(nn.Module):
    """ResNet-18 for RGB images.

    Args:
        classes: the number of outputs.
        stem: ``imagenet`` (7x7 convolution with stride 2, max-pooling) or ``cifar`` (3x3
            convolution with stride 1, no pooling: fifteen times the work per image).
        groups: the number of groups of each group normalisation.
    """

    def __init__(self, classes: int = 10, *, stem: str = "imagenet", groups: int = 2) -> None:
        super().__init__()
        require_known(stem, STEMS, f"there is no stem {stem!r}")
        require(
            groups >= 1 and 64 % groups == 0,
            f"groups is {groups}; it must divide 64, the number of channels of the first layers,"
            " such as 2",
        )
        if stem == "imagenet":
            self.conv1 = nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False)
            self.maxpool: nn.Module = nn.MaxPool2d(3, stride=2, padding=1)
        else:
            self.conv1 = nn.Conv2d(3, 64, 3, padding=1, bias=False)
            self.maxpool = nn.Identity()
        self.bn1 = nn.GroupNorm(groups, 64)
        self.relu = nn.ReLU(inplace=True)
        self.layer1 = _layer(64, 64, stride=1, groups=groups)
        self.layer2 = _layer(64, 128, stride=2, groups=groups)
        self.layer3 = _layer(128, 256, stride=2, groups=groups)
        self.layer4 = _layer(256, 512, stride=2, groups=groups)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(512, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        """Map images [B, 3, H, W] to logits [B, classes]."""
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        logits: Tensor = self.fc(self.avgpool(x).flatten(1))
        return logits


def _layer(inside: int, outside: int, *, stride: int, groups: int) -> nn.Sequential:
    return nn.Sequential(
        BasicBlock(inside, outside, stride=stride, groups=groups),
        BasicBlock(outside, outside, stride=1, groups=groups),
    )
