"""The networks, one file each; they need only torch.

Each file holds a function ``make(data, **options)`` that makes the network for a training set.
Its keyword-only parameters are the options of ``[model]`` in an experiment's file, with their
types and defaults.  One line in :data:`MODELS` gives the network its name in that file.
"""

from collections.abc import Callable

from torch import nn

from . import decoder, lenet, mlp, resnet, vit
from .decoder import Decoder
from .lenet import ACTIVATIONS, SMU, LeNet
from .resnet import STEMS, ResNet18
from .shapes import Shaped
from .vit import ViT

__all__ = [
    "ACTIVATIONS",
    "MODELS",
    "SMU",
    "STEMS",
    "Decoder",
    "LeNet",
    "ResNet18",
    "Shaped",
    "ViT",
]

MODELS: dict[str, Callable[..., nn.Module]] = {
    "lenet": lenet.make,
    "resnet18": resnet.make,
    "mlp": mlp.make,
    "decoder": decoder.make,
    "vit": vit.make,
}
