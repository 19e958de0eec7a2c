r"""FedNova's normalised averaging: clients that take more steps do not pull x further.

.. math::
    \Delta_i \leftarrow \Delta_i / s_i, \qquad
    d = \overline{s}\; \overline{\Delta}, \qquad s_i = \sum_\tau \eta_\tau

Wang et al., "Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization",
2020, for local SGD, whose :math:`\|a_i\|_1` is the number of steps K_i.  A client's delta is
divided by the sum of its learning rates, which is lr·K_i if the rate is constant within the round,
and the server multiplies by the mean of these sums.  Around a rule with momentum the paper's
:math:`\|a_i\|_1` would be another; here it is always the sum of the rates.  The paper weights
clients by their examples; here that is ``weighting="examples"``, and by default they count equally.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..part import Correction, Round
from ..vectors import Vectors

__all__ = ["Nova"]


@dataclass(frozen=True, kw_only=True)
class Nova(Correction):
    """Average what clients did per unit of their learning rates, not all that they did."""

    name = "nova"
    stacks = True
    unit_delta = True

    def end(self, client: Vectors, r: Round) -> None:
        super().end(client, r)
        client.delta = client.delta / r.lr_sum

    def serve(self, server: Vectors, mean: Vectors, r: Round) -> None:
        mean.delta = mean.delta * r.lr_sum
        super().serve(server, mean, r)
