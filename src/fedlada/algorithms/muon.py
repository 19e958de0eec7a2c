r"""Local Muon with a momentum shared through the server (FedMuon).

.. math::
    m &\leftarrow \beta m + (1-\beta) g \\
    y &\leftarrow y - \eta_l \bigl(0.2\sqrt{\max(a, b)}\; \mathrm{orth}(m) + \lambda y\bigr)

for a tensor with a rows and b columns, where orth sets all singular values to about 1 by five
Newton-Schulz steps.  A client starts from the server's m, which is the mean of the clients' last.

Jordan et al., "Muon: An optimizer for hidden layers in neural networks", 2024, as torch's Muon
without ``nesterov`` and with ``adjust_lr_fn="match_rms_adamw"``, which lets AdamW's rates carry
over; Liu et al., "FedMuon: Accelerating Federated Learning with Matrix Orthogonalization", 2025
(arXiv:2510.27403), which is this inside :class:`Amend` with alpha 0.5.

Deviations: the Newton-Schulz steps are taken in the parameters' own type and not in bfloat16; the
filters of a convolution are the rows of a matrix; a tensor of one dimension, or one whose name has
a word of ``flat`` in it (an embedding, say), is a single row, whose orthogonal factor is
:math:`m/\|m\|`; the paper's m, without the factor :math:`1-\beta`, gives the same steps; its
compression of m is not here.  Plain local Muon is biased (arXiv:2509.26337): it need not settle
where the gradient of the mean loss is 0.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import require
from .part import LocalRule, Round
from .vectors import Vector, Vectors

__all__ = ["Muon"]

STEPS = 5
QUINTIC = (3.4445, -4.7750, 2.0315)
"""The coefficients of a Newton-Schulz step, which grow small singular values fast."""


@dataclass(frozen=True, kw_only=True)
class Muon(LocalRule):
    """Muon on the client: steps along the orthogonal factor of a momentum."""

    down = ("m_mean",)
    up = ("m",)

    lr: float = 1e-3
    weight_decay: float = 1e-2
    beta: float = 0.95
    flat: tuple[str, ...] = ()
    """Words in the names of parameters that are no matrices, whatever their shape."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(0 <= self.beta < 1, f"beta is {self.beta}; it must be from 0 up to below 1")

    def begin(self, client: Vectors) -> None:
        client.m = client.m_mean.clone()

    def step(self, client: Vectors, g: Vector, lr: float) -> None:
        lr *= self.lr_scale
        torch._foreach_lerp_(client.m.tensors, g.tensors, 1 - self.beta)
        if self.weight_decay:
            torch._foreach_mul_(client.y.tensors, 1 - lr * self.weight_decay)
        names = client.y.names or [""] * len(client.y)
        for y, m, name in zip(client.y, client.m, names, strict=True):
            flat = m.dim() < 2 or any(word in name for word in self.flat)
            rows = m.reshape(1, -1) if flat else m.reshape(m.shape[0], -1)
            factor = 0.2 * max(rows.shape) ** 0.5
            y.add_(orthogonal(rows).reshape(y.shape), alpha=-lr * factor)

    def serve(self, server: Vectors, mean: Vectors, r: Round) -> None:
        server.m_mean = mean.m


def orthogonal(matrix: Tensor) -> Tensor:
    """Return the matrix with all singular values near 1; exactly so for a single row."""
    tall = matrix.shape[0] > matrix.shape[1]
    unit = matrix.T if tall else matrix
    unit = unit / unit.norm().clamp(min=1e-7)
    if min(matrix.shape) > 1:
        a, b, c = QUINTIC
        for _ in range(STEPS):
            gram = unit @ unit.T
            unit = torch.addmm(unit, torch.addmm(gram, gram, gram, beta=b, alpha=c), unit, beta=a)
    return unit.T if tall else unit
