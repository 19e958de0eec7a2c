r"""Local AdamW with bias correction, new in every round or continued from round to round.

.. math::
    t &\leftarrow t + 1, \qquad m \leftarrow \beta_1 m + (1-\beta_1) g, \qquad
    v \leftarrow \beta_2 v + (1-\beta_2) g \odot g \\
    y &\leftarrow y - \eta_l \Bigl(
        \frac{m / (1-\beta_1^t)}{\sqrt{v / (1-\beta_2^t)} + \epsilon} + \lambda y\Bigr)

Loshchilov and Hutter, "Decoupled Weight Decay Regularization", 2019, as torch's AdamW.

:class:`FreshAdamW` starts m, v and t at 0 in every round and sends what FedAvg does.  It is the
"Local AdamW" with which Liu et al. compare FedAdamW (2025, arXiv:2510.27486) and FedMuon (2025,
arXiv:2510.27403).

In :class:`AdamW` the client keeps m, v and t.  It is the inner rule of DiLoCo (Douillard et al.,
"DiLoCo: Distributed Low-Communication Training of Language Models", 2023).  Deviations: DiLoCo's
workers all take part in every round, and here a client that was not sampled keeps its moments from
the last round that it took part in; its weight decay is 0.1 and its rate 4e-4, where the defaults
here are 0.01 and 0.001; its warm-up and cosine of the rate are for a scheduler and ``lr_decay``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from ..part import Names
from ..vectors import Vector, Vectors
from .adam import Adam

__all__ = ["AdamW", "FreshAdamW"]


@dataclass(frozen=True, kw_only=True)
class FreshAdamW(Adam):
    """AdamW on the client, with bias correction, restarted in every round."""

    name = "adamw-fresh"
    stacks = True

    betas: tuple[float, float] = (0.9, 0.999)
    decoupled_weight_decay: bool = True

    def begin(self, client: Vectors) -> None:
        client.m, client.v_i = client.y.zeros_like(), client.y.zeros_like()
        client.t_each = client.y.counter()

    def move(self, client: Vectors, g: Vector, lr: float) -> None:
        torch._foreach_add_(client.t_each.tensors, 1)
        t = float(client.t_each.tensors[0])
        self._corrected(client, g, lr, *(1 - beta**t for beta in self.betas))


@dataclass(frozen=True, kw_only=True)
class AdamW(FreshAdamW):
    """AdamW on the client, with bias correction; the client keeps all of its state."""

    name = "adamw"
    stacks = True
    client_state: ClassVar[Names] = ("m", "v_i", "t_each")

    def join(self, client: Vectors) -> None:
        super().join(client)
        client.t_each = client.y.counter()

    def begin(self, client: Vectors) -> None:
        for name in self.client_state:  # a rejected reply must leave the kept ones unchanged
            client[name] = client[name].clone()
