r"""Amending: every local step is mixed with the federation's average direction of the last round.

.. math::
    y &\leftarrow y - \eta_l \bigl(\alpha\, d + (1-\alpha)\, g_a\bigr) \\
    g_a &\leftarrow \frac{1}{\eta_l K}\,\frac1S \sum_{i} \Delta_i

where d is the direction of the rule inside.  Around SGD this is FedCM (Xu et al., 2021), around
AMSGrad it is FedLADA (Sun et al., Algorithm 3).

Choices made here where the paper is silent: g_a is measured with the learning rate of the round
that produced it, so that under a decaying rate
:math:`g_a' = \alpha\,\overline d + (1-\alpha) g_a` holds exactly; it is never uploaded, since the
server derives it; with unequal K_i it is divided by the mean of the clients' lr·K_i.  Weight
decay belongs to the rule inside: outside the mix it would be fed back through g_a and act as λ/α.

``warm_start`` is not in the paper: g_a starts at 0 and is an exponential average, so round t
moves only 1-(1-α)^(t+1) of a full step; with it the round's lr is divided by that factor.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import require
from .part import Correction, Round
from .vectors import Vector, Vectors

__all__ = ["Amend"]


@dataclass(frozen=True, kw_only=True)
class Amend(Correction):
    """Mix the local direction with the federation's last average direction g_a."""

    down = ("g_a",)

    alpha: float = 0.1
    warm_start: bool = False

    def __post_init__(self) -> None:
        require(
            0 < self.alpha <= 1,
            f"alpha is {self.alpha}; it must be above 0 and at most 1 (1 amends nothing)",
        )

    def lr_factor(self, round: int) -> float:
        factor = super().lr_factor(round)
        return factor / (1 - (1 - self.alpha) ** (round + 1)) if self.warm_start else factor

    def step(self, client: Vectors, g: Vector, lr: float) -> None:
        self.inner.step(client, g, lr * self.alpha)
        client.y.add_(client.g_a, alpha=-lr * (1 - self.alpha))

    def coasting(self, down: Vectors, lr_sum: float) -> Vector | None:
        return down.g_a * (lr_sum * (1 - self.alpha))

    def serve(self, server: Vectors, mean: Vectors, r: Round) -> None:
        super().serve(server, mean, r)
        server.g_a = mean.delta / r.lr_sum
