"""Relatives of FedLADA, each with one thing changed, to see what its successor might be made of."""

from __future__ import annotations

from dataclasses import dataclass

from fedlada import Algorithm
from fedlada.algorithms import Correction, Round, Vector, Vectors
from fedlada.algorithms.corrections import Amend
from fedlada.algorithms.local import SGD, AMSGrad, FreshMuon, SharedMuon


@dataclass(frozen=True, kw_only=True)
class AmendGradient(Correction):
    """Amend the gradient before the rule inside sees it, not the direction that it makes of it.

    The second moment is then that of the amended gradient, whose noise is alpha times as large.
    Around SGD without decay this is FedCM.
    """

    down = ("g_a",)
    up = ("g_mean",)

    alpha: float = 0.1

    def begin(self, client: Vectors) -> None:
        super().begin(client)
        client.shift = client.g_a * (1 - self.alpha)
        client.g_sum = client.y.zeros_like()

    def step(self, client: Vectors, g: Vector, lr: float) -> None:
        amended = client.shift.add(g, alpha=self.alpha)
        client.g_sum.add_(amended)
        self.inner.step(client, amended, lr)

    def end(self, client: Vectors, r: Round) -> None:
        super().end(client, r)
        client.g_mean = client.g_sum / r.steps

    def serve(self, server: Vectors, mean: Vectors, r: Round) -> None:
        super().serve(server, mean, r)
        server.g_a = mean.g_mean


@dataclass(frozen=True, kw_only=True)
class AmendAgreeing(Amend):
    """Amend by as much of the federation's last direction as the one before it agrees with.

    g_a is multiplied by (1 + cos) / 2 of the angle between the last two mean directions: 1 where
    they point the same way, 0 where they are opposite.
    """

    def serve(self, server: Vectors, mean: Vectors, r: Round) -> None:
        before = server.g_a
        super().serve(server, mean, r)
        lengths = before.norm() * server.g_a.norm()
        cosine = before.dot(server.g_a) / lengths if lengths > 0 else 1.0
        server.g_a = server.g_a * ((1 + cosine) / 2)


@dataclass(frozen=True, kw_only=True)
class AmendCommon(Amend):
    """Amend by the share of g_a that is common to clients, as their disagreement tells it.

    With c the part of the clients' own mean displacement in their mean square, and S clients in a
    round, two clients have p = (S c - 1) / (S - 1) of their squared length in common.  g_a is a
    mean over the clients of (2 - alpha) / alpha rounds, n in all, so n p / (1 + (n - 1) p) of its
    square is common to them, and the rest is chance: g_a is multiplied by that.
    """

    def serve(self, server: Vectors, mean: Vectors, r: Round) -> None:
        coasted = server.g_a * (r.lr_sum * (1 - self.alpha))
        own = mean.delta - coasted
        square = r.delta_square - 2 * mean.delta.dot(coasted) + coasted.dot(coasted)
        super().serve(server, mean, r)
        part = own.dot(own) / square if square > 0 else 1.0
        clients = max(2, r.accepted)
        p = min(1.0, max(0.0, (clients * part - 1) / (clients - 1)))
        n = clients * (2 - self.alpha) / self.alpha
        server.g_a = server.g_a * (n * p / (1 + (n - 1) * p))


@dataclass(frozen=True, kw_only=True)
class AmendLater(Amend):
    """Amend from a later round on; before it clients take ``alone`` of the rate by themselves.

    g_a is 0 until then and begins at its full length, the mean direction of the last such round.
    """

    first: int = 20
    alone: float = 0.5

    def lr_factor(self, round: int) -> float:
        return super().lr_factor(round) * (self.alone / self.alpha if round < self.first else 1.0)

    def serve(self, server: Vectors, mean: Vectors, r: Round) -> None:
        super().serve(server, mean, r)
        left = self.first - 1 - r.updates
        if left >= 0:
            server.g_a = server.g_a * (0.0 if left else 1 / self.alpha)


@dataclass(frozen=True, kw_only=True)
class ShortMuon(SharedMuon):
    """SharedMuon with three Newton-Schulz steps instead of five."""

    newton_schulz = 3


GRADIENT = Algorithm(AmendGradient(AMSGrad()))
AGREEING = Algorithm(AmendAgreeing(AMSGrad()))
COMMON = Algorithm(AmendCommon(AMSGrad()))
LATER = Algorithm(AmendLater(AMSGrad()))
SGD_LATER = Algorithm(AmendLater(SGD()))
SHORT = Algorithm(ShortMuon())
OWN_MOMENTUM = Algorithm(Amend(FreshMuon(), alpha=0.5))
