r"""FedLESAM: sharpness-aware minimisation whose perturbation is known before the round.

.. math::
    e = \rho\, \frac{x_{old} - x}{\|x_{old} - x\|}, \qquad
    y \leftarrow y - \eta_l \nabla f_i(y + e), \qquad x_{old} \leftarrow x

Fan et al., "Locally Estimated Global Perturbations are Better than Local Perturbations for
Federated Sharpness-aware Minimization", ICML 2024.  :math:`x_{old}` is the model that this client
received when it was last sampled, and it is kept by the client; it starts at x, so that in a
client's first round e is 0.  One gradient per step is enough, since e is constant within a round: y
is moved by e when the round begins, back and forth around each step, and back when it ends. Where
the authors' code differs from their paper, this follows the paper.  Corrections that look at y,
such as Prox and Dyn, belong inside.  The paper's FedLESAM-S is this around :class:`Scaffold`, and
its FedLESAM-D this around :class:`Dyn`.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...errors import require
from ..part import Correction, Round
from ..vectors import Vector, Vectors

__all__ = ["LESAM"]


@dataclass(frozen=True, kw_only=True)
class LESAM(Correction):
    """Take gradients ahead of y, along the way that the federation's model went."""

    name = "lesam"
    stacks = True
    client_state = ("x_old",)

    rho: float = 0.05
    """Distance from the weights at which the gradient is taken."""

    def __post_init__(self) -> None:
        require(self.rho > 0, f"rho is {self.rho}; it must be positive")

    def join(self, client: Vectors) -> None:
        client.x_old = client.x.clone()

    def begin(self, client: Vectors) -> None:
        super().begin(client)
        client.e = (client.x_old - client.x).of_length(self.rho)
        client.y.add_(client.e)

    def step(self, client: Vectors, g: Vector, lr: float) -> None:
        client.y.add_(client.e, alpha=-1)
        self.inner.step(client, g, lr)
        client.y.add_(client.e)

    def end(self, client: Vectors, r: Round) -> None:
        client.y.add_(client.e, alpha=-1)
        client.delta = client.x - client.y
        super().end(client, r)
        client.x_old = client.x.clone()
