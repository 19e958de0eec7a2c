r"""SCAFFOLD's control variates (option II), with the scale of FedLADA's appendix.

.. math::
    g &\leftarrow g + \gamma\,(c - c_i) \\
    c_i' &= \frac1K \sum_\tau g_\tau, \qquad
    c \leftarrow c + \frac{S}{m}\,\frac1S \sum_i (c_i' - c_i)

Karimireddy et al., "SCAFFOLD: Stochastic Controlled Averaging for Federated Learning", 2020;
the scale gamma ("alpha" there) is the appendix of Sun et al.

c_i starts at 0 and is kept by the client.  The original form of c_i' is
:math:`c_i - c + \Delta_i/(K\eta_l)`.  Over plain SGD that is exactly the mean of the client's K
raw gradients.  Over an adaptive rule or with weight decay a displacement is no longer a gradient,
so this implementation always keeps the mean.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...errors import require
from ..part import Correction, Round, Sum
from ..vectors import Vector, Vectors

__all__ = ["Scaffold"]


@dataclass(frozen=True, kw_only=True)
class Scaffold(Correction):
    """Correct each gradient by the difference of the global and the client's mean gradient."""

    name = "scaffold"
    stacks = True
    down = ("c",)
    up = ("c_change",)
    client_state = ("c_i",)
    sums = (Sum("c_change", into="c", kept="c_i"),)

    scale: float = 1.0
    """Factor on the correction of each gradient; 0 corrects nothing."""

    def __post_init__(self) -> None:
        require(self.scale >= 0, f"scale is {self.scale}; it must be 0 (none) or positive")

    def begin(self, client: Vectors) -> None:
        super().begin(client)
        client.shift = (client.c - client.c_i) * self.scale
        client.g_sum = client.y.zeros_like()

    def step(self, client: Vectors, g: Vector, lr: float) -> None:
        client.g_sum.add_(g)
        self.inner.step(client, g + client.shift, lr)

    def end(self, client: Vectors, r: Round) -> None:
        super().end(client, r)
        g_mean = client.g_sum / r.steps
        client.c_change = g_mean - client.c_i
        client.c_i = g_mean

    def serve(self, server: Vectors, mean: Vectors, r: Round) -> None:
        super().serve(server, mean, r)
        server.c = server.c.add(mean.c_change, alpha=r.accepted / r.clients)
