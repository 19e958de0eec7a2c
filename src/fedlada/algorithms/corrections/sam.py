r"""Sharpness-aware minimisation: each gradient is taken where the loss is highest nearby.

.. math:: g \leftarrow \nabla f_i\bigl(y + \rho\, g / \|g\|\bigr)

with the norm over all parameters.  Around SGD it is FedSAM, and inside :class:`Amend` it is
MoFedSAM (Qu et al., "Generalized Federated Learning via Sharpness Aware Minimization", 2022).
The second gradient is of the same batch, by the closure that ``optimizer.step`` is given, and it is
the one that clipping and all other corrections act on; if the closure clips, the first one is
clipped as well, which changes its length and not its direction.  Where g is 0, y is not moved; some
codes add 1e-7 to the norm instead.  Inside :class:`Scaffold` it is FedGAMMA (Dai et al., "FedGAMMA:
Federated Learning with Global Sharpness-Aware Minimization", 2023).
"""

from __future__ import annotations

from dataclasses import dataclass

from ...errors import require
from ..part import Correction
from ..vectors import Vector, Vectors

__all__ = ["SAM"]


@dataclass(frozen=True, kw_only=True)
class SAM(Correction):
    """Take each gradient at the worst point nearby; a step then needs a closure."""

    name = "sam"
    stacks = True

    rho: float = 0.05
    """Distance from the weights at which the gradient is taken."""

    def __post_init__(self) -> None:
        require(self.rho > 0, f"rho is {self.rho}; it must be positive")

    def probe(self, client: Vectors, g: Vector) -> Vector | None:
        return g.of_length(self.rho)
