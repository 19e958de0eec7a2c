"""The server half: the loop over rounds, its state, the guard and the checkpoints.

Nothing here imports the client half.
"""

from .aggregate.mean import Mean
from .aggregate.robust import CenteredClipping, CoordinateMedian, TrimmedMean
from .guard import Guard
from .sampling import Bernoulli, FixedSize

__all__ = [
    "Bernoulli",
    "CenteredClipping",
    "CoordinateMedian",
    "FixedSize",
    "Guard",
    "Mean",
    "TrimmedMean",
]
