r"""Local Muon, whose momentum is shared through the server, kept by the client, or new each round.

.. math::
    m &\leftarrow \beta m + (1-\beta) g \\
    y &\leftarrow y - \eta_l \bigl(0.2\sqrt{\max(a, b)}\; \mathrm{orth}(m) + \lambda y\bigr)

for a tensor with a rows and b columns, where orth sets all singular values to about 1 by five
Newton-Schulz steps.  The three rules differ in the m with which a client begins a round:

- :class:`SharedMuon`: the mean of the clients' last m, which they send beside their displacement;
- :class:`KeptMuon`: the m with which this client ended the last round that it took part in;
- :class:`FreshMuon`: 0, so that nothing but the displacement is sent or kept.

:class:`CorrectedMuon` is :class:`KeptMuon` along :math:`\mathrm{orth}(m - c_i + \overline m)`,
where :math:`c_i` is the m with which the client began the round.  The server's :math:`\overline m`
is the mean of the last m of all n clients: it grows by :math:`\frac1n \sum_{i \in S} (m_i - c_i)`.

Jordan et al., "Muon: An optimizer for hidden layers in neural networks", 2024, as torch's Muon
without ``nesterov`` and with ``adjust_lr_fn="match_rms_adamw"``, which lets AdamW's rates carry
over.  The names in papers differ.  Liu et al., "FedMuon: Accelerating Federated Learning with
Matrix Orthogonalization", 2025 (arXiv:2510.27403), is :class:`SharedMuon` inside :class:`Amend`
with alpha 0.5; the "Local Muon" that it compares with is :class:`FreshMuon`.  Takezawa et al.,
"FedMuon: Federated Learning with Bias-corrected LMO-based Optimization", 2025 (arXiv:2509.26337),
is :class:`CorrectedMuon`, and its "LocalMuon" is :class:`KeptMuon`.  MuLoCo (Thérien et al., 2025,
arXiv:2505.23725) is :class:`KeptMuon` under Nesterov momentum on the server.

Deviations: the Newton-Schulz steps are taken in the parameters' own type and not in bfloat16; the
filters of a convolution are the rows of a matrix; a tensor of one dimension, or one whose name has
a word of ``flat`` in it (an embedding, say), is a single row, whose orthogonal factor is
:math:`m/\|m\|`, where Jordan et al. and Liu et al.'s code use AdamW for such tensors; Liu et al.'s
m, without the factor :math:`1-\beta`, gives the same steps, and their compression of m is not here;
their code adds Nesterov's look-ahead, has beta 0.98 and the factor :math:`\sqrt{\max(1, a/b)}`; a
client that was not sampled keeps its m in :class:`KeptMuon`, where MuLoCo's workers take part in
every round.  But for :class:`CorrectedMuon` these rules are biased (Takezawa et al.): they need not
settle where the gradient of the mean loss is 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor

from ...errors import require
from ..part import LocalRule, Round, Sum
from ..vectors import Vector, Vectors

__all__ = ["CorrectedMuon", "FreshMuon", "KeptMuon", "Muon", "SharedMuon"]

QUINTIC = (3.4445, -4.7750, 2.0315)
"""The coefficients of a Newton-Schulz step, which grow small singular values fast."""


@dataclass(frozen=True, kw_only=True)
class Muon(LocalRule):
    """The base of Muon's family: hyper-parameters and the step along the orthogonal factor."""

    lr: float = 3e-3
    weight_decay: float = 1e-2
    beta: float = 0.95
    """Weight of the old momentum in its running mean."""
    flat: tuple[str, ...] = ()
    """Words in the names of parameters that are no matrices, whatever their shape."""
    newton_schulz: ClassVar[int] = 5
    """The number of Newton-Schulz steps; fewer leave the singular values further from 1."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(0 <= self.beta < 1, f"beta is {self.beta}; it must be from 0 up to below 1")

    def move(self, client: Vectors, g: Vector, lr: float) -> None:
        torch._foreach_lerp_(client.m.tensors, g.tensors, 1 - self.beta)
        if self.weight_decay:
            torch._foreach_mul_(client.y.tensors, 1 - lr * self.weight_decay)
        names = client.y.names or [""] * len(client.y)
        for y, m, name in zip(client.y, self.along(client), names, strict=True):
            if not m.numel():
                continue
            flat = any(word in name for word in self.flat)
            move = partial(follow, lr=lr, flat=flat, steps=self.newton_schulz)
            client.y.lift(move)(y, m)

    def along(self, client: Vectors) -> Vector:
        """Return the vector whose orthogonal factor a step follows."""
        return client.m


@dataclass(frozen=True, kw_only=True)
class SharedMuon(Muon):
    """Muon on the client; the server averages and shares its momentum."""

    name = "muon"
    stacks = True
    down = ("m_mean",)
    up = ("m",)
    directions = ("m",)

    def begin(self, client: Vectors) -> None:
        client.m = client.m_mean.clone()

    def known(self, down: Vectors, r: Round) -> Vectors:
        return Vectors(m=down.m_mean * self.beta**r.steps)

    def serve(self, server: Vectors, mean: Vectors, r: Round) -> None:
        server.m_mean = mean.m


@dataclass(frozen=True, kw_only=True)
class KeptMuon(Muon):
    """Muon on the client, which keeps its momentum from round to round."""

    name = "muon-kept"
    stacks = True
    client_state = ("m",)

    def begin(self, client: Vectors) -> None:
        client.m = client.m.clone()  # a rejected reply must leave the kept one unchanged


@dataclass(frozen=True, kw_only=True)
class FreshMuon(Muon):
    """Muon on the client, whose momentum starts at 0 in every round; nothing is shared."""

    name = "muon-fresh"
    stacks = True

    def begin(self, client: Vectors) -> None:
        client.m = client.y.zeros_like()


@dataclass(frozen=True, kw_only=True)
class CorrectedMuon(KeptMuon):
    """Muon along the mean momentum of all clients, renewed by the change of this client's own."""

    name = "muon-corrected"
    stacks = True
    down = ("m_mean",)
    up = ("m_change",)
    sums = (Sum("m_change", into="m_mean", kept="m"),)

    def begin(self, client: Vectors) -> None:
        client.m_shift = client.m_mean - client.m
        client.m_change = client.m
        super().begin(client)

    def along(self, client: Vectors) -> Vector:
        return client.m + client.m_shift

    def end(self, client: Vectors, r: Round) -> None:
        client.m_change = client.m - client.m_change

    def serve(self, server: Vectors, mean: Vectors, r: Round) -> None:
        server.m_mean = server.m_mean.add(mean.m_change, alpha=r.accepted / r.clients)


def follow(y: Tensor, m: Tensor, *, lr: float, flat: bool, steps: int) -> Tensor:
    """Move a tensor along the orthogonal factor of m; a ``flat`` one is a single row."""
    rows = m.reshape(1, -1) if flat or m.dim() < 2 else m.reshape(m.shape[0], -1)
    factor = 0.2 * max(rows.shape) ** 0.5
    return y.add_(orthogonal(rows, steps).reshape(y.shape), alpha=-lr * factor)


def orthogonal(matrix: Tensor, steps: int = Muon.newton_schulz) -> Tensor:
    """Return the matrix with all singular values near 1; exactly so for a single row."""
    tall = matrix.shape[0] > matrix.shape[1]
    unit = matrix.T if tall else matrix
    unit = unit / unit.norm().clamp(min=1e-7)
    if min(matrix.shape) > 1:
        a, b, c = QUINTIC
        for _ in range(steps):
            gram = unit @ unit.T
            unit = torch.addmm(unit, torch.addmm(gram, gram, gram, beta=b, alpha=c), unit, beta=a)
    return unit.T if tall else unit
