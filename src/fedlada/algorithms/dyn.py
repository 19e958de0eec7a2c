r"""FedDyn's dynamic regularisation.

.. math::
    g &\leftarrow g - h_i + a (y - x), \qquad h_i \leftarrow h_i - a (y_K - x) \\
    h &\leftarrow h - \frac{a}{m} \sum_{i\in S} (y_i - x), \qquad
    x \leftarrow \frac1S\sum_{i\in S} y_i - \frac{h}{a}

Acar et al., "Federated Learning Based on Dynamic Regularization", 2021.  h_i starts at 0 and is
kept by the client; h is the server's own.  The last line is written as a displacement,
:math:`x - (\overline\Delta + h/a)`, so that any server rule can follow.  The paper of FedLADA
has no FedDyn; a = 0.1 is our default.
"""

from __future__ import annotations

from dataclasses import dataclass

from .part import Correction, Round, require
from .vectors import Vector, Vectors

__all__ = ["Dyn"]


@dataclass(frozen=True, kw_only=True)
class Dyn(Correction):
    """Regularise each client so that its optimum moves to the federation's."""

    kept = ("h_i",)
    held = ("h",)

    a: float = 0.1

    def __post_init__(self) -> None:
        require(self.a > 0, f"a is {self.a}; it must be positive: the server divides by it")

    def step(self, c: Vectors, g: Vector, lr: float) -> None:
        self.inner.step(c, (g - c.h_i).add_(c.y - c.x, alpha=self.a), lr)

    def end(self, c: Vectors, r: Round) -> None:
        super().end(c, r)
        c.h_i = c.h_i.add(c.y - c.x, alpha=-self.a)

    def serve(self, s: Vectors, mean: Vectors, r: Round) -> None:
        super().serve(s, mean, r)
        s.h = s.h.add(mean.delta, alpha=self.a * r.accepted / r.clients)

    def displacement(self, s: Vectors, mean: Vectors) -> Vector:
        return super().displacement(s, mean).add(s.h, alpha=1 / self.a)
