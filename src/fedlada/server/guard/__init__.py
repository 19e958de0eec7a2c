"""The guard decides which replies may change the model, and by how much."""

from .admission import Admission, Admitted, Measured, Open, Weighting
from .limits import Guard, History, Seen

__all__ = ["Admission", "Admitted", "Guard", "History", "Measured", "Open", "Seen", "Weighting"]
