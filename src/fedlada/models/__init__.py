"""The networks, one file each; they need only torch.

Each file holds a function ``make(data, **options)`` that makes the network for a training set.
Its keyword-only parameters are the options of ``[model]`` in an experiment's file, with their
types and defaults, and its ``NAME`` is ``model.name`` there.  A new network needs its file and its
module in the line below.
"""

from collections.abc import Callable
from types import ModuleType

from torch import nn

from . import decoder as decoder, lenet as lenet, mlp as mlp, resnet as resnet, vit as vit
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
    module.NAME: module.make
    for module in [*globals().values()]
    if isinstance(module, ModuleType) and hasattr(module, "make")
}
"""The function of each network by its name."""
