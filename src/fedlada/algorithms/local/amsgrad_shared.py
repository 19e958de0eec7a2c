r"""AMSGrad with both moments shared through the server (FedLALR).

As :class:`AMSGrad`, but m, too, starts at the mean of the clients' last m instead of at 0:

.. math::
    m_i \leftarrow \overline m, \quad \hat v_i \leftarrow \overline v; \qquad
    \overline m \leftarrow \frac1S\sum_i m_i, \quad
    \overline v \leftarrow \frac1S\sum_i \hat v_i

Sun et al., "FedLALR: Client-Specific Adaptive Learning Rates Achieve Linear Speedup for Non-IID
Data", 2023 (arXiv:2309.09719).  The choices of :mod:`.adam` hold here as well: no bias correction,
a floor of v instead of an epsilon beside the root, v_i starts at the broadcast v, and weight decay,
which the paper does not have.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..part import Round
from ..vectors import Vectors
from .adam import AMSGrad

__all__ = ["SharedAMSGrad"]


@dataclass(frozen=True, kw_only=True)
class SharedAMSGrad(AMSGrad):
    """AMSGrad on the client; the server averages and shares both of its moments."""

    name = "amsgrad-shared"
    stacks = True
    down = ("v", "m_mean")
    up = ("v_hat", "m")
    directions = ("m",)

    def start(self, server: Vectors) -> None:
        super().start(server)
        server.m_mean = server.x.zeros_like()

    def begin(self, client: Vectors) -> None:
        super().begin(client)
        client.m = client.m_mean.clone()

    def known(self, down: Vectors, r: Round) -> Vectors:
        return Vectors(super().known(down, r) | {"m": down.m_mean * self.betas[0] ** r.steps})

    def serve(self, server: Vectors, mean: Vectors, r: Round) -> None:
        super().serve(server, mean, r)
        server.m_mean = mean.m
