"""The guard: which replies may touch the model, and how much of them."""

from .admission import Admission, Admitted, Measured, Open, Weighting
from .limits import Guard, History, Seen

__all__ = ["Admission", "Admitted", "Guard", "History", "Measured", "Open", "Seen", "Weighting"]
