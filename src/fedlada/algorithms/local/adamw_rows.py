r"""AdamW whose second moment is shared by its mean over each row of a tensor (FedAdamW).

A client receives x, one v per row and t, sets y = x, m = 0 and every :math:`v_i` of a row to its v,
and in its k-th step does

.. math::
    m &\leftarrow \beta_1 m + (1-\beta_1) g, \qquad
    v_i \leftarrow \beta_2 v_i + (1-\beta_2) g \odot g \\
    y &\leftarrow y - \eta_l \Bigl(
        \frac{m / (1-\beta_1^k)}{\sqrt{v_i / (1-\beta_2^{t+k})} + \epsilon} + \lambda y\Bigr)

and sends the mean of :math:`v_i` over each row; the server's v is the mean of these, and its t
counts the steps behind v.

Liu et al., "FedAdamW: A Communication-Efficient Optimizer with Convergence and Generalization
Guarantees for Federated Large Models", 2025 (arXiv:2510.27486); :class:`AmendAdded` around it is
the rest of FedAdamW.  Deviations: a block is a row (one output), where the paper has a head of an
attention for queries and keys; t grows by the mean number of steps, and :math:`1-\beta_2^t` is what
is sent of it; v starts at :math:`\epsilon^2` and not at 0, so that a guard can measure its rise;
the paper prints :math:`-\lambda y` inside the bracket, where :math:`+\lambda y` is meant.  The
authors' code differs from their paper: it sends the whole v and corrects m, too, by the count of
all rounds.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ..part import Moment, Round
from ..vectors import Vector, Vectors
from .adam import Adam
from .amsgrad_rows import row_mean, rows_like

__all__ = ["AdamWRows"]


@dataclass(frozen=True, kw_only=True)
class AdamWRows(Adam):
    """AdamW on the client; the server averages and shares its second moment by rows."""

    name = "adamw-rows"
    stacks = True
    down = ("v_rows", "weight_each")
    up = ("v_i_rows",)
    moments = (Moment("v_i_rows", of="v_rows"),)

    betas: tuple[float, float] = (0.9, 0.999)
    decoupled_weight_decay: bool = True

    def start(self, server: Vectors) -> None:
        self.check_eps(server.x)
        server.v_rows = rows_like(server.x, self.eps**2)
        server.weight_each = server.x.zeros("weight_each")

    def begin(self, client: Vectors) -> None:
        client.m, client.k_each = client.y.zeros_like(), client.y.counter()
        client.v_i = client.y.zeros_like().copy_(client.v_rows)

    def move(self, client: Vectors, g: Vector, lr: float) -> None:
        torch._foreach_add_(client.k_each.tensors, 1)
        (beta1, beta2), k = self.betas, float(client.k_each.tensors[0])
        before = float(client.weight_each.tensors[0])
        self._corrected(client, g, lr, 1 - beta1**k, 1 - (1 - before) * beta2**k)

    def end(self, client: Vectors, r: Round) -> None:
        client.v_i_rows = client.v_i.each(row_mean)

    def known(self, down: Vectors, r: Round) -> Vectors:
        return Vectors(v_i_rows=down.v_rows * self.betas[1] ** r.steps)

    def serve(self, server: Vectors, mean: Vectors, r: Round) -> None:
        server.v_rows = mean.v_i_rows.clamp_min(self.eps**2)
        left = self.betas[1] ** r.steps
        server.weight_each = (server.weight_each * left) + (1 - left)
