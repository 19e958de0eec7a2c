"""Differential privacy: noise that nobody can repeat, its account, and training that adds it."""

from .account import Sampled
from .training import PrivateTraining

__all__ = ["PrivateTraining", "Sampled"]
