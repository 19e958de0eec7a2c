r"""Local SGD, the local rule of FedAvg.

.. math:: y \leftarrow y - \eta_l (g + \lambda y)

McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data",
2017.  Weight decay is L2, added to the gradient; for plain SGD decoupled weight decay is the same.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ...devices import has_fused
from ..part import LocalRule
from ..vectors import Vector, Vectors

__all__ = ["SGD"]


@dataclass(frozen=True, kw_only=True)
class SGD(LocalRule):
    """Plain stochastic gradient descent on the client."""

    name = "sgd"
    stacks = True

    lr: float = 0.1
    weight_decay: float = 1e-3

    def move(self, client: Vectors, g: Vector, lr: float) -> None:
        if not has_fused(client.y.device):
            client.y.add_(g.add(client.y, alpha=self.weight_decay), alpha=-lr)
            return
        torch._fused_sgd_(
            client.y.tensors,
            g.tensors,
            [],
            weight_decay=self.weight_decay,
            momentum=0.0,
            lr=lr,
            dampening=0.0,
            nesterov=False,
            maximize=False,
            is_first_step=False,
        )
