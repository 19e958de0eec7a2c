"""The networks of the paper's experiments; they need torch alone."""

from fedlada.models.lenet import ACTIVATIONS, SMU, LeNet
from fedlada.models.resnet import STEMS, ResNet18

__all__ = ["ACTIVATIONS", "SMU", "STEMS", "LeNet", "ResNet18"]
