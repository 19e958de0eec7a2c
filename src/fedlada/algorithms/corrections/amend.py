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
decay belongs to the rule inside: outside the mix, as in the simulator by FedLADA's first author,
it is fed back through g_a and acts as λ/α.

Amending by adding is the other form, of Liu et al., "FedAdamW", 2025 (arXiv:2510.27486), whose
alpha is :math:`1-\alpha` here, so that 1 amends nothing in both forms:

.. math:: y \leftarrow y - \eta_l \bigl(d + (1-\alpha)\, g_a\bigr)

Since g_a is measured in units of the learning rate, this is :class:`Amend` with the same alpha at
a rate :math:`1/\alpha` times as large: a steady step is :math:`1/\alpha` times as long as the local
rule's own.

``warm_start`` is not in the paper: g_a starts at 0 and is an exponential average, so round t
moves only 1-(1-α)^(t+1) of a full step; with it the round's lr is divided by that factor.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...errors import require
from ..part import Correction, Round
from ..vectors import Vector, Vectors

__all__ = ["Amend", "AmendAdded"]


@dataclass(frozen=True, kw_only=True)
class Amend(Correction):
    """Mix the local direction with the federation's last average direction g_a."""

    name = "amend"
    stacks = True
    down = ("g_a",)

    alpha: float = 0.1
    """Share of the local direction in a step; 1 amends nothing."""
    warm_start: bool = False
    """Whether to divide out the slow start of g_a, which lengthens the first steps."""

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

    def known(self, down: Vectors, r: Round) -> Vectors:
        known = super().known(down, r)
        known.delta = down.g_a * (r.lr_sum * (1 - self.alpha))
        return known

    def serve(self, server: Vectors, mean: Vectors, r: Round) -> None:
        super().serve(server, mean, r)
        server.g_a = mean.delta / r.lr_sum


@dataclass(frozen=True, kw_only=True)
class AmendAdded(Amend):
    """Add the federation's last average direction g_a to the local direction."""

    name = "amend-added"
    stacks = True

    alpha: float = 0.5
    """The shared direction is added 1 - alpha times; 1 adds nothing."""

    def step(self, client: Vectors, g: Vector, lr: float) -> None:
        self.inner.step(client, g, lr)
        client.y.add_(client.g_a, alpha=-lr * (1 - self.alpha))
