r"""FedDyn's dynamic regularisation.

.. math::
    g &\leftarrow g - h_i + a (y - x), \qquad h_i \leftarrow h_i - a (y_K - x) \\
    h &\leftarrow h - \frac{a}{m} \sum_{i\in S} (y_i - x), \qquad
    x \leftarrow \frac1S\sum_{i\in S} y_i - \frac{h}{a}

Acar et al., "Federated Learning Based on Dynamic Regularization", 2021.  h_i starts at 0 and is
kept by the client; h is kept by the server.  The last line is written as a displacement,
:math:`x - (\overline\Delta + h/a)`, so that any server rule can follow.  The paper of FedLADA
has no FedDyn; a = 0.1 is our default.

Deviations: a client takes K steps of the rule inside, where the paper minimises exactly; the
authors' code scales a by the size of the client and evaluates the mean of the cohort's y_i, and
here a is the same for all and x is evaluated.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...errors import require
from ..part import Correction, Round, Sum
from ..vectors import Vector, Vectors

__all__ = ["Dyn"]


@dataclass(frozen=True, kw_only=True)
class Dyn(Correction):
    """Regularise each client so that its optimum moves to the federation's."""

    name = "dyn"
    stacks = True
    client_state = ("h_i",)
    server_state = ("h",)
    sums = (Sum("delta", into="h", kept="h_i", times="a"),)
    late = (
        "every update moves x by all of h/a, and there are more updates per reply; one run did not"
        " diverge, and no more is known"
    )

    a: float = 0.1
    """Strength of the regularisation."""

    def __post_init__(self) -> None:
        require(self.a > 0, f"a is {self.a}; it must be positive: the server divides by it")

    def step(self, client: Vectors, g: Vector, lr: float) -> None:
        self.inner.step(client, (g - client.h_i).add_(client.y - client.x, alpha=self.a), lr)

    def end(self, client: Vectors, r: Round) -> None:
        super().end(client, r)
        client.h_i = client.h_i.add(client.y - client.x, alpha=-self.a)

    def serve(self, server: Vectors, mean: Vectors, r: Round) -> None:
        super().serve(server, mean, r)
        server.h = server.h.add(mean.delta, alpha=self.a * r.accepted / r.clients)

    def displacement(self, server: Vectors, mean: Vectors) -> Vector:
        return super().displacement(server, mean).add(server.h, alpha=1 / self.a)
