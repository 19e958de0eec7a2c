"""The guard decides which replies may change the model, and by how much."""

from .account import Accounts
from .admission import Admission, Weighting
from .limits import Guard, History, Limit, Seen
from .open import Open
from .outcome import Admitted, Measured

__all__ = [
    "Accounts",
    "Admission",
    "Admitted",
    "Guard",
    "History",
    "Limit",
    "Measured",
    "Open",
    "Seen",
    "Weighting",
]
