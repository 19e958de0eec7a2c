r"""Local Lion with a momentum shared through the server (FedLion).

.. math::
    y &\leftarrow y - \eta_l \bigl(\mathrm{sign}(\beta_1 m + (1-\beta_1) g) + \lambda y\bigr) \\
    m &\leftarrow \beta_2 m + (1-\beta_2) g

A client starts from the server's m and sends its own beside its displacement; the server's m is
their mean, and starts at 0.  Without weight decay :math:`\Delta_i/\eta_l` is an integer from -K to
K in each coordinate.

Tang and Chang, "FedLion: Faster Adaptive Federated Optimization with Fewer Communication", 2024
(arXiv:2402.09941); Chen et al., "Symbolic Discovery of Optimization Algorithms", 2023.  The paper
sends these integers, and here a codec decides what is sent; the paper has no weight decay, which is
decoupled here as in Lion and 0 by default.  The default of beta2, 0.99, is Lion's; that of the
authors' code is 0.9.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ..part import LocalRule, Round
from ..vectors import Vector, Vectors
from .adam import check_betas

__all__ = ["Lion"]


@dataclass(frozen=True, kw_only=True)
class Lion(LocalRule):
    """Lion on the client: steps of one size along the sign of a momentum."""

    name = "lion"
    stacks = True
    down = ("m_mean",)
    up = ("m",)
    directions = ("m",)

    lr: float = 1e-3
    weight_decay: float = 0.0
    betas: tuple[float, float] = (0.9, 0.99)
    """Weights of the old momentum in the step and in the running mean."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_betas(self.betas)

    def begin(self, client: Vectors) -> None:
        client.m = client.m_mean.clone()

    def move(self, client: Vectors, g: Vector, lr: float) -> None:
        beta1, beta2 = self.betas
        if self.weight_decay:
            torch._foreach_mul_(client.y.tensors, 1 - lr * self.weight_decay)
        mixed = torch._foreach_lerp(client.m.tensors, g.tensors, 1 - beta1)
        client.y.add_(Vector(mixed).sign(), alpha=-lr)
        torch._foreach_lerp_(client.m.tensors, g.tensors, 1 - beta2)

    def known(self, down: Vectors, r: Round) -> Vectors:
        return Vectors(m=down.m_mean * self.betas[1] ** r.steps)

    def serve(self, server: Vectors, mean: Vectors, r: Round) -> None:
        server.m_mean = mean.m
