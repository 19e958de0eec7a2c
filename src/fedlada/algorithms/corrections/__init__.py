"""Corrections: each wraps a local rule or another correction.

A new one needs its file and one line here; its class says its name.
"""

from ...named import by_name
from ..part import Correction
from .amend import Amend as Amend, AmendAdded as AmendAdded
from .dyn import Dyn as Dyn
from .lesam import LESAM as LESAM
from .nova import Nova as Nova
from .prox import Prox as Prox
from .sam import SAM as SAM
from .scaffold import Scaffold as Scaffold

CORRECTIONS = by_name(globals(), Correction)
