"""Server rules: each turns the mean displacement of a round into the new x.

A new one needs its file and one line here; its class says its name.
"""

from ...named import by_name
from .adaptive import (
    Adagrad as Adagrad,
    ServerAdam as ServerAdam,
    ServerAMSGrad as ServerAMSGrad,
    Yogi as Yogi,
)
from .averaging import Averaging as Averaging, Momentum as Momentum
from .extrapolation import ExP as ExP
from .nesterov import Nesterov as Nesterov

SERVER_RULES = by_name(globals(), Averaging)
