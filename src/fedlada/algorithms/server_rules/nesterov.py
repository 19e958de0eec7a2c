r"""Nesterov momentum on the server: the outer step of DiLoCo, and FedACG.

.. math:: m \leftarrow \beta m + d, \qquad x \leftarrow x - \eta_g (\beta m + d)

Douillard et al., "DiLoCo: Distributed Low-Communication Training of Language Models", 2023
(:math:`\eta_g` 0.7, :math:`\beta` 0.9), as torch's SGD with ``nesterov=True``.

With :math:`\eta_g = 1` this x is what FedACG (Kim et al., "Communication-Efficient Federated
Learning with Accelerated Client Gradient", CVPR 2024) broadcasts: the server's model moved ahead
by :math:`\beta m`, from which its clients start and to which their proximal term pulls.  The
deviation: FedACG evaluates the model without that lead, and here the broadcast x is evaluated.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..part import Round
from ..vectors import Vector, Vectors
from .averaging import Averaging, Momentum

__all__ = ["Nesterov"]


@dataclass(frozen=True, kw_only=True)
class Nesterov(Momentum):
    """Momentum on the server that looks one step ahead (DiLoCo, FedACG)."""

    name = "nesterov"

    def apply(self, server: Vectors, d: Vector, r: Round) -> None:
        server.m_g = d.add(server.m_g, alpha=self.momentum)
        Averaging.apply(self, server, d.add(server.m_g, alpha=self.momentum), r)
