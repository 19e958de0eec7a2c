r"""Amending by adding: the federation's last direction comes on top of the local one.

.. math:: y \leftarrow y - \eta_l \bigl(d + (1-\alpha)\, g_a\bigr)

with g_a as in :class:`Amend`.  Since g_a is measured in units of the learning rate, this is
:class:`Amend` with the same alpha at a rate :math:`1/\alpha` times as large: a steady step is
:math:`1/\alpha` times as long as the local rule's own.

Liu et al., "FedAdamW", 2025 (arXiv:2510.27486), whose alpha is :math:`1-\alpha` here, so that 1
amends nothing in both of our forms.
"""

from __future__ import annotations

from dataclasses import dataclass

from .amend import Amend
from .vectors import Vector, Vectors

__all__ = ["AmendAdded"]


@dataclass(frozen=True, kw_only=True)
class AmendAdded(Amend):
    """Add the federation's last average direction g_a to the local direction."""

    alpha: float = 0.5

    def step(self, client: Vectors, g: Vector, lr: float) -> None:
        self.inner.step(client, g, lr)
        client.y.add_(client.g_a, alpha=-lr * (1 - self.alpha))
