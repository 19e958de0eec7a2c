r"""Adaptive server rules: Adam, Yogi, Adagrad and AMSGrad on the mean displacement d of a round.

.. math::
    \text{Adam, Yogi, Adagrad} &: m \leftarrow \beta_1 m + (1-\beta_1) d,\quad
        x \leftarrow x - \eta_g\, m / (\sqrt v + \tau) \\
    &\quad v \leftarrow \beta_2 v + (1-\beta_2) d^2 \text{ (Adam)},\quad
        v \leftarrow v - (1-\beta_2)\, d^2\, \mathrm{sign}(v - d^2) \text{ (Yogi)},\quad
        v \leftarrow v + d^2 \text{ (Adagrad)} \\
    \text{AMSGrad} &: \hat v \leftarrow \max(\hat v, v, \epsilon),\quad
        x \leftarrow x - \eta_g\, m / \sqrt{\hat v} \text{ with Adam's m and v}

Reddi et al., "Adaptive Federated Optimization", 2021 (tau is called ``eps`` here as in torch);
Wang, Lin and Chen, "Communication-Efficient Adaptive Federated Learning", 2022
(arXiv:2205.02719), option 1 (FedAMS: epsilon is inside the maximum and not beside the root; v
starts at 0; its compression with error feedback, FedCAMS, is not here: a codec compresses).  The
defaults eta_g = 0.1 and v_0 = 0.01 are FedLADA's for its FedAdam baseline; Reddi et al. ask for
:math:`v_0 \ge \tau^2` and tune eta_g.  There is no bias correction, as in both papers; the authors'
code of FedAMS corrects the bias of m and of v.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ...errors import require
from ..part import Names, Round
from ..vectors import Vector, Vectors
from .averaging import Averaging, momentum_is_late

__all__ = ["Adagrad", "AdaptiveServer", "ServerAMSGrad", "ServerAdam", "Yogi"]


@dataclass(frozen=True, kw_only=True)
class AdaptiveServer(Averaging):
    """The base of the adaptive server rules, which differ in how they update v_g."""

    server_state: ClassVar[Names] = ("m_g", "v_g")

    server_lr: float = 0.1
    server_betas: tuple[float, float] = (0.9, 0.99)
    """Weights of the old momentum and the old second moment on the server."""
    server_eps: float = 1e-3
    """Added to the root of the server's second moment; larger is less adaptive."""
    server_v0: float = 1e-2
    """The server's second moment before the first round."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            len(self.server_betas) == 2 and all(0 <= beta < 1 for beta in self.server_betas),
            f"server_betas is {self.server_betas}; it must be two numbers from 0 up to below 1",
        )
        require(self.server_eps > 0, f"server_eps is {self.server_eps}; it must be positive")
        require(self.server_v0 >= 0, f"server_v0 is {self.server_v0}; it must be 0 or positive")

    def start(self, server: Vectors) -> None:
        super().start(server)
        server.v_g = server.x.full_like(self.server_v0)

    @property
    def late(self) -> str:
        return momentum_is_late(self.server_betas[0])

    def second_moment(self, v: Vector, d: Vector) -> Vector:
        """Return the new v_g."""
        raise NotImplementedError(f"{type(self).__name__} defines no second_moment")

    def apply(self, server: Vectors, d: Vector, r: Round) -> None:
        beta1, _ = self.server_betas
        server.m_g = (server.m_g * beta1).add_(d, alpha=1 - beta1)
        server.v_g = self.second_moment(server.v_g, d)
        super().apply(server, server.m_g / self.denominator(server, server.v_g), r)

    def denominator(self, server: Vectors, v: Vector) -> Vector:
        """Return what m is divided by."""
        return v.sqrt() + self.server_eps


@dataclass(frozen=True, kw_only=True)
class ServerAdam(AdaptiveServer):
    """Adam on the server (FedAdam)."""

    name = "adam"

    def second_moment(self, v: Vector, d: Vector) -> Vector:
        beta2 = self.server_betas[1]
        return (v * beta2).add_(d * d, alpha=1 - beta2)


@dataclass(frozen=True, kw_only=True)
class Yogi(AdaptiveServer):
    """Yogi on the server (FedYogi)."""

    name = "yogi"

    def second_moment(self, v: Vector, d: Vector) -> Vector:
        d2 = d * d
        return v.add((v - d2).sign() * d2, alpha=-(1 - self.server_betas[1]))


@dataclass(frozen=True, kw_only=True)
class Adagrad(AdaptiveServer):
    """Adagrad on the server (FedAdagrad)."""

    name = "adagrad"

    server_betas: tuple[float, float] = (0.0, 0.0)

    def second_moment(self, v: Vector, d: Vector) -> Vector:
        return v + d * d


@dataclass(frozen=True, kw_only=True)
class ServerAMSGrad(ServerAdam):
    """AMSGrad on the server (FedAMS)."""

    name = "amsgrad"
    server_state = ("m_g", "v_g", "v_hat_g")

    server_v0: float = 0.0

    def denominator(self, server: Vectors, v: Vector) -> Vector:
        server.v_hat_g = server.v_hat_g.maximum(v).clamp_min(self.server_eps)
        return server.v_hat_g.sqrt()
