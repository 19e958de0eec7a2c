"""Differential privacy: its settings and account, noise that nobody can repeat, and training."""

from .account import Sampled
from .masks import Masks
from .settings import Privacy
from .training import PrivateTraining

__all__ = ["Masks", "Privacy", "PrivateTraining", "Sampled"]
