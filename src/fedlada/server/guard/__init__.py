"""The guard decides which replies may change the model, and by how much."""

from .admission import Accounts, Admission, Admitted, Measured, NoGuard, Weighting, judged
from .limits import CENTRE, Guard, History, Limit, Seen

__all__ = [
    "CENTRE",
    "Accounts",
    "Admission",
    "Admitted",
    "Guard",
    "History",
    "Limit",
    "Measured",
    "NoGuard",
    "Seen",
    "Weighting",
    "judged",
]
