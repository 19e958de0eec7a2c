r"""Local Adam of which nothing is shared: it starts anew in every round (FedAda2).

.. math::
    m \leftarrow \beta_1 m + (1-\beta_1) g, \qquad
    v \leftarrow \beta_2 v + (1-\beta_2) g \odot g, \qquad
    y \leftarrow y - \eta_l\, m / (\sqrt v + \epsilon)

with m = v = 0 at the start of a round, so it sends no more than FedAvg.  Under an adaptive server
rule it is FedAda² (Lee et al., "Efficient Adaptive Federated Optimization", 2024,
arXiv:2410.18117).  As there, no bias is corrected, so the first step of a round is
:math:`(1-\beta_1)/\sqrt{1-\beta_2}` times as long as one of sign descent.  Not here: their
preconditioner that is renewed in every z-th step only, and clients with unlike rules.  Weight
decay is as in :mod:`.adam`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from .adam import Adam
from .part import Moment, Names, Round
from .vectors import Vector, Vectors

__all__ = ["UnsharedAdam"]


@dataclass(frozen=True, kw_only=True)
class UnsharedAdam(Adam):
    """Adam on the client, anew in every round; the server sees neither moment."""

    down: ClassVar[Names] = ()
    up: ClassVar[Names] = ()
    moments: ClassVar[tuple[Moment, ...]] = ()

    def start(self, server: Vectors) -> None:
        """Keep nothing on the server."""

    def begin(self, client: Vectors) -> None:
        client.m, client.v_i = client.y.zeros_like(), client.y.zeros_like()

    def step(self, client: Vectors, g: Vector, lr: float) -> None:
        self._fused(client, g, lr, eps=self.eps)

    def serve(self, server: Vectors, mean: Vectors, r: Round) -> None:
        """Learn nothing from the replies but their delta."""
