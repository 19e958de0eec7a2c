r"""Local AdamW that goes on from round to round: both moments and the count stay with the client.

.. math::
    t &\leftarrow t + 1, \qquad m \leftarrow \beta_1 m + (1-\beta_1) g, \qquad
    v \leftarrow \beta_2 v + (1-\beta_2) g \odot g \\
    y &\leftarrow y - \eta_l \Bigl(
        \frac{m / (1-\beta_1^t)}{\sqrt{v / (1-\beta_2^t)} + \epsilon} + \lambda y\Bigr)

Loshchilov and Hutter, "Decoupled Weight Decay Regularization", 2019, as torch's AdamW.  It is the
inner rule of DiLoCo (Douillard et al., 2023), whose workers all take part in every round; here a
client that was not sampled keeps its moments from the last round that it took part in.  DiLoCo's
warm-up and cosine of the rate are for a scheduler and ``lr_decay``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch

from .ada2 import UnsharedAdam
from .part import Names
from .vectors import Vector, Vectors

__all__ = ["AdamW"]


@dataclass(frozen=True, kw_only=True)
class AdamW(UnsharedAdam):
    """AdamW on the client, with bias correction; the client keeps all of its state."""

    client_state: ClassVar[Names] = ("m", "v_i", "t_each")

    betas: tuple[float, float] = (0.9, 0.999)
    decoupled_weight_decay: bool = True

    def join(self, client: Vectors) -> None:
        super().join(client)
        client.t_each = client.y.counter()

    def begin(self, client: Vectors) -> None:
        for name in self.client_state:  # the kept ones must stay, lest the reply be rejected
            client[name] = client[name].clone()

    def step(self, client: Vectors, g: Vector, lr: float) -> None:
        torch._foreach_add_(client.t_each.tensors, 1)
        t = float(client.t_each.tensors[0])
        self._corrected(client, g, lr, *(1 - beta**t for beta in self.betas))

    def _corrected(self, client: Vectors, g: Vector, lr: float, c_m: float, c_v: float) -> None:
        """Take a step with m and v divided by these sums of their weights."""
        root = math.sqrt(c_v)
        self._fused(client, g, lr, eps=self.eps * root, longer=root / c_m)
