"""Local rules: each turns a gradient into a step, and ends a chain of parts.

A new one needs its file and one line here; its class says its name.
"""

from ...named import by_name
from ..part import LocalRule
from .adam import AMSGrad as AMSGrad, SharedAdam as SharedAdam
from .adam_unshared import UnsharedAdam as UnsharedAdam
from .adamw import AdamW as AdamW, FreshAdamW as FreshAdamW
from .adamw_rows import AdamWRows as AdamWRows
from .amsgrad_rows import AMSGradRows as AMSGradRows
from .amsgrad_shared import SharedAMSGrad as SharedAMSGrad
from .lion import Lion as Lion
from .muon import (
    CorrectedMuon as CorrectedMuon,
    FreshMuon as FreshMuon,
    KeptMuon as KeptMuon,
    SharedMuon as SharedMuon,
)
from .sgd import SGD as SGD

LOCAL_RULES = by_name(globals(), LocalRule)
