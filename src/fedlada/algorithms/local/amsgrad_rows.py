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

from ..part import Moment, Round
from ..vectors import Vector, Vectors, by_rows
from .adam import Adam

__all__ = ["AMSGradRows", "row_mean", "rows_like"]


@dataclass(frozen=True, kw_only=True)
class AMSGradRows(Adam):
    """AMSGrad on the client with one second moment per row."""

    name = "amsgrad-rows"
    stacks = True
    down = ("v_rows",)
    up = ("v_hat_rows",)
    moments = (Moment("v_hat_rows", of="v_rows", rising=True),)

    def start(self, server: Vectors) -> None:
        self.check_eps(server.x)
        server.v_rows = rows_like(server.x, self.eps**2)

    def begin(self, client: Vectors) -> None:
        client.m = client.y.zeros_like()
        client.v_i = client.v_rows.clone()
        client.v_hat_rows = client.v_rows.clone()

    def move(self, client: Vectors, g: Vector, lr: float) -> None:
        beta1, beta2 = self.betas
        if self.decoupled_weight_decay:
            torch._foreach_mul_(client.y.tensors, 1 - lr * self.weight_decay)
        mean_square = client.y.lift(_mean_square)
        squares, decay = [], 0.0 if self.decoupled_weight_decay else self.weight_decay
        # Reuse one buffer for all tensors: allocating it costs more than the arithmetic.
        most = max((t.numel() for t in g), default=0) if decay else 0
        room = g.tensors[0].new_empty(most) if most else None
        for y, m, t in zip(client.y, client.m, g, strict=True):
            if room is not None:
                t = torch.add(t, y, alpha=decay, out=room[: t.numel()].view(t.shape))
            m.lerp_(t, 1 - beta1)
            squares.append(mean_square(t))
        torch._foreach_lerp_(client.v_i.tensors, squares, 1 - beta2)
        torch._foreach_maximum_(client.v_hat_rows.tensors, client.v_i.tensors)
        for y, m, root in zip(client.y, client.m, client.v_hat_rows.sqrt(), strict=True):
            y.addcdiv_(m, root, value=-lr)

    def known(self, down: Vectors, r: Round) -> Vectors:
        return Vectors(v_hat_rows=down.v_rows)

    def serve(self, server: Vectors, mean: Vectors, r: Round) -> None:
        server.v_rows = mean.v_hat_rows.clamp_min(self.eps**2)


def rows_like(x: Vector, value: float) -> Vector:
    """Return a constant for each row of the tensors of ``x``."""
    return Vector(t.new_full(by_rows(t.shape), value) for t in x)


def row_mean(t: Tensor) -> Tensor:
    """Return the mean of each row; of a tensor with one dimension, each element."""
    return t.mean(dim=tuple(range(1, t.dim())), keepdim=True) if t.dim() > 1 else t.clone()


def _mean_square(t: Tensor) -> Tensor:
    """Return the mean square of each row."""
    if t.dim() < 2:
        return t * t
    norms: Tensor = torch.linalg.vector_norm(t, dim=tuple(range(1, t.dim())), keepdim=True)
    return norms.mul_(norms).mul_(t.shape[0] / max(1, t.numel()))
