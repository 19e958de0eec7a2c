"""Differential privacy: its settings and account, noise that nobody can repeat, and training."""

from .account import Sampled
from .settings import Privacy
from .training import PrivateTraining

__all__ = ["Privacy", "PrivateTraining", "Sampled"]
