r"""FedProx's proximal term.

.. math:: g \leftarrow g + \mu (y - x)

Li et al., "Federated Optimization in Heterogeneous Networks", 2020.  The paper of FedLADA gives
no mu for its FedProx baseline; 0.01 is our default.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...errors import require
from ..part import Correction
from ..vectors import Vector, Vectors

__all__ = ["Prox"]


@dataclass(frozen=True, kw_only=True)
class Prox(Correction):
    """Pull the local model back towards the server's."""

    name = "prox"
    stacks = True

    mu: float = 0.01
    """Strength of the pull towards the server's model; 0 is no pull."""

    def __post_init__(self) -> None:
        require(self.mu >= 0, f"mu is {self.mu}; it must be 0 (no pull) or positive")

    def step(self, client: Vectors, g: Vector, lr: float) -> None:
        self.inner.step(client, g.add(client.y - client.x, alpha=self.mu), lr)
