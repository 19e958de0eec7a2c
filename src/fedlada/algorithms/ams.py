r"""FedAMS's server rule: Adam on the server with a second moment that never falls.

.. math::
    \hat v \leftarrow \max(\hat v, v, \epsilon), \qquad
    x \leftarrow x - \eta_g\, m / \sqrt{\hat v}

with m and v as in :class:`ServerAdam`.  Wang, Lin and Chen, "Communication-Efficient Adaptive
Federated Learning", 2022 (arXiv:2205.02719), option 1: epsilon is inside the maximum and not
beside the root.  Its compression with error feedback (FedCAMS) is not here: a codec compresses.
v starts at 0 as there, and not at FedLADA's 0.01.
"""

from __future__ import annotations

from dataclasses import dataclass

from .server import ServerAdam
from .vectors import Vector, Vectors

__all__ = ["ServerAMSGrad"]


@dataclass(frozen=True, kw_only=True)
class ServerAMSGrad(ServerAdam):
    """AMSGrad on the server (FedAMS)."""

    server_state = ("m_g", "v_g", "v_hat_g")

    server_v0: float = 0.0

    def denominator(self, server: Vectors, v: Vector) -> Vector:
        server.v_hat_g = server.v_hat_g.maximum(v).clamp_min(self.server_eps)
        return server.v_hat_g.sqrt()
