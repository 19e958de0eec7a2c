r"""FedExP's server rule: the further clients disagree, the longer the server's step.

.. math::
    x \leftarrow x - \eta_g\, d \,
        \max\Bigl(1,\ \frac{\frac1S\sum_i \|\Delta_i\|^2}{2\,(\|d\|^2 + \epsilon)}\Bigr)

Jhunjhunwala, Wang and Joshi, "FedExP: Speeding Up Federated Averaging via Extrapolation", 2023.
The paper has no further factor: :math:`\eta_g` (``server_lr``) is 1.  It evaluates the mean of the
last two x; here the last one is evaluated.  If replies are weighted, both means are.  The authors'
code multiplies epsilon by the number of clients in the round and lowers it with the square of the
rate's decay; here it stays as in the paper, so that a decaying rate makes extrapolation fade.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...errors import require
from ..part import Round
from ..vectors import Vector, Vectors
from .averaging import Averaging

__all__ = ["ExP"]


@dataclass(frozen=True, kw_only=True)
class ExP(Averaging):
    """Averaging with an extrapolated step (FedExP)."""

    name = "exp"

    server_eps: float = 1e-3
    """Added to the squared length of the mean step; larger limits the extrapolation."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.server_eps > 0, f"server_eps is {self.server_eps}; it must be positive")

    @property
    def late(self) -> str:
        return (
            "the step grows with the disagreement of the deltas, and deltas of different versions"
            " disagree more; one run did not diverge, and no more is known"
        )

    @property
    def leaks(self) -> str:
        return "its step follows from the lengths of single deltas, which no noise hides"

    def apply(self, server: Vectors, d: Vector, r: Round) -> None:
        length = d.norm()
        factor = max(1.0, r.delta_square / (2 * (length * length + self.server_eps)))
        super().apply(server, d * factor, r)
