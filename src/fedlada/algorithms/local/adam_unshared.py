r"""Local Adam of which nothing is shared: it restarts in every round (FedAda2).

.. math::
    m \leftarrow \beta_1 m + (1-\beta_1) g, \qquad
    v \leftarrow \beta_2 v + (1-\beta_2) g \odot g, \qquad
    y \leftarrow y - \eta_l\, m / (\sqrt v + \epsilon)

with m = v = 0 at the start of a round, so it sends no more than FedAvg.  Under an adaptive server
rule it is FedAda² (Lee et al., "Efficient Adaptive Federated Optimization", 2024,
arXiv:2410.18117).  As there, no bias is corrected, so the first step of a round is
:math:`(1-\beta_1)/\sqrt{1-\beta_2}` times as long as one of sign descent.  Not here: their
preconditioner that is renewed in every z-th step only, clients with different rules, and FedAda²++,
whose clients keep SM3's small second moments.  Their server's Adam starts from v = 0 with betas 0.9
and 0.999, and so does ``fedada2``.  Weight decay is as in :mod:`.adam`.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..vectors import Vector, Vectors
from .adam import Adam

__all__ = ["UnsharedAdam"]


@dataclass(frozen=True, kw_only=True)
class UnsharedAdam(Adam):
    """Adam on the client, restarted in every round; the server sees neither moment."""

    name = "adam-unshared"
    stacks = True

    def begin(self, client: Vectors) -> None:
        client.m, client.v_i = client.y.zeros_like(), client.y.zeros_like()

    def move(self, client: Vectors, g: Vector, lr: float) -> None:
        self._fused(client, g, lr, eps=self.eps)
