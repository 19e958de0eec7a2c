r"""Server rules: how the mean displacement d of a round becomes the new x.

.. math::
    \text{Averaging} &: x \leftarrow x - \eta_g d \\
    \text{Momentum} &: m \leftarrow \beta m + d,\quad x \leftarrow x - \eta_g m \\
    \text{Adam, Yogi, Adagrad} &: m \leftarrow \beta_1 m + (1-\beta_1) d,\quad
        x \leftarrow x - \eta_g\, m / (\sqrt v + \tau) \\
    &\quad v \leftarrow \beta_2 v + (1-\beta_2) d^2 \text{ (Adam)},\quad
        v \leftarrow v - (1-\beta_2)\, d^2\, \mathrm{sign}(v - d^2) \text{ (Yogi)},\quad
        v \leftarrow v + d^2 \text{ (Adagrad)}

Hsu et al., 2019 (momentum); Reddi et al., "Adaptive Federated Optimization", 2021 (the others;
tau is called ``eps`` here as in torch).  The defaults eta_g = 0.1 and v_0 = 0.01 are FedLADA's
for its FedAdam baseline.  Bias correction is off by default, as in Reddi et al.  The server's
moments are called m_g and v_g because a local rule may share its own v.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..errors import require
from .part import Names, Round
from .vectors import Vector, Vectors

__all__ = ["Adagrad", "AdaptiveServer", "Averaging", "Momentum", "ServerAdam", "Yogi"]


@dataclass(frozen=True, kw_only=True)
class Averaging:
    """Move x by the mean displacement; ``server_lr`` 1 is plain averaging of the clients."""

    server_state: ClassVar[Names] = ()
    """Vectors only the server keeps."""

    server_lr: float = 1.0

    def __post_init__(self) -> None:
        require(self.server_lr > 0, f"server_lr is {self.server_lr}; it must be positive")

    def start(self, server: Vectors) -> None:
        """Make the ``server_state`` vectors before the first round."""
        for name in self.server_state:
            server[name] = server.x.zeros_like()

    def apply(self, server: Vectors, d: Vector, r: Round) -> None:
        """Update ``server.x`` from the mean displacement ``d``."""
        server.x = server.x.add(d, alpha=-self.server_lr)


@dataclass(frozen=True, kw_only=True)
class Momentum(Averaging):
    """Heavy-ball momentum on the server (FedAvgM)."""

    server_state = ("m_g",)

    momentum: float = 0.9

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            0 <= self.momentum < 1, f"momentum is {self.momentum}; it must be from 0 up to below 1"
        )

    def apply(self, server: Vectors, d: Vector, r: Round) -> None:
        server.m_g = d.add(server.m_g, alpha=self.momentum)
        super().apply(server, server.m_g, r)


@dataclass(frozen=True, kw_only=True)
class AdaptiveServer(Averaging):
    """The base of the adaptive server rules, which differ in how they update v_g."""

    server_state: ClassVar[Names] = ("m_g", "v_g")

    server_lr: float = 0.1
    server_betas: tuple[float, float] = (0.9, 0.99)
    server_eps: float = 1e-3
    server_v0: float = 1e-2
    bias_correction: bool = False

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

    def second_moment(self, v: Vector, d: Vector) -> Vector:
        """Return the new v_g."""
        raise NotImplementedError(f"{type(self).__name__} defines no second_moment")

    def apply(self, server: Vectors, d: Vector, r: Round) -> None:
        beta1, beta2 = self.server_betas
        server.m_g = (server.m_g * beta1).add_(d, alpha=1 - beta1)
        server.v_g = self.second_moment(server.v_g, d)
        m, v = server.m_g, server.v_g
        if self.bias_correction:
            m = m / (1 - beta1 ** (r.updates + 1))
            v = v / (1 - beta2 ** (r.updates + 1))
        super().apply(server, m / self.denominator(server, v), r)

    def denominator(self, server: Vectors, v: Vector) -> Vector:
        """Return what m is divided by."""
        return v.sqrt() + self.server_eps


@dataclass(frozen=True, kw_only=True)
class ServerAdam(AdaptiveServer):
    """Adam on the server (FedAdam)."""

    def second_moment(self, v: Vector, d: Vector) -> Vector:
        beta2 = self.server_betas[1]
        return (v * beta2).add_(d * d, alpha=1 - beta2)


@dataclass(frozen=True, kw_only=True)
class Yogi(AdaptiveServer):
    """Yogi on the server (FedYogi)."""

    def second_moment(self, v: Vector, d: Vector) -> Vector:
        d2 = d * d
        return v.add((v - d2).sign() * d2, alpha=-(1 - self.server_betas[1]))


@dataclass(frozen=True, kw_only=True)
class Adagrad(AdaptiveServer):
    """Adagrad on the server (FedAdagrad)."""

    server_betas: tuple[float, float] = (0.0, 0.0)

    def second_moment(self, v: Vector, d: Vector) -> Vector:
        return v + d * d
