r"""AMSGrad with one second moment per row of a tensor instead of one per element.

A row is what belongs to one output: a row of a matrix, a filter of a convolution; of a tensor with
one dimension, an element.  With :math:`\overline{g^2}` the mean of a row's squared gradient,

.. math::
    v_i &\leftarrow \beta_2 v_i + (1-\beta_2)\, \overline{g^2} \\
    \hat v_i &\leftarrow \max(v_i, \hat v_i)

and everything else is as in :class:`AMSGrad`.  v and v̂ then take next to no bytes, so FedLADA
sends what FedCM does.  The mean is taken before the maximum: averaging the v̂ of single elements
would raise it every round, since each element's maximum is above the mean.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .adam import AMSGrad
from .part import Moment, Round
from .vectors import Vector, Vectors, by_rows

__all__ = ["AMSGradRows"]


@dataclass(frozen=True, kw_only=True)
class AMSGradRows(AMSGrad):
    """AMSGrad on the client with one second moment per row."""

    down = ("v_rows",)
    up = ("v_hat_rows",)
    moments = (Moment("v_hat_rows", of="v_rows", rising=True),)

    def start(self, server: Vectors) -> None:
        super().start(server)
        server.v_rows = Vector(t.new_full(by_rows(t.shape), self.eps**2) for t in server.pop("v"))

    def begin(self, client: Vectors) -> None:
        client.m = client.y.zeros_like()
        client.v_i = client.v_rows.clone()
        client.v_hat_rows = client.v_rows.clone()

    def step(self, client: Vectors, g: Vector, lr: float) -> None:
        (beta1, beta2), lr = self.betas, lr * self.lr_scale
        if self.decoupled_weight_decay:
            torch._foreach_mul_(client.y.tensors, 1 - lr * self.weight_decay)
        elif self.weight_decay:
            g = g.add(client.y, alpha=self.weight_decay)
        torch._foreach_lerp_(client.m.tensors, g.tensors, 1 - beta1)
        torch._foreach_lerp_(client.v_i.tensors, [_mean_square(t) for t in g], 1 - beta2)
        torch._foreach_maximum_(client.v_hat_rows.tensors, client.v_i.tensors)
        for y, m, root in zip(client.y, client.m, client.v_hat_rows.sqrt(), strict=True):
            y.addcdiv_(m, root, value=-lr)

    def serve(self, server: Vectors, mean: Vectors, r: Round) -> None:
        server.v_rows = mean.v_hat_rows.clamp_min(self.eps**2)


def _mean_square(t: Tensor) -> Tensor:
    """Return the mean square of each row."""
    if t.dim() < 2:
        return t * t
    norms: Tensor = torch.linalg.vector_norm(t, dim=tuple(range(1, t.dim())), keepdim=True)
    return norms.square_().mul_(t.shape[0] / max(1, t.numel()))
