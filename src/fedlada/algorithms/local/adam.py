r"""Local Adam and AMSGrad with a second moment shared through the server.

The server keeps v, which starts at :math:`\epsilon_v^2` everywhere.  A client receives x and v,
sets y = x, m = 0, :math:`v_i = \hat v_i = v`, and K times does

.. math::
    m &\leftarrow \beta_1 m + (1-\beta_1) g \\
    v_i &\leftarrow \beta_2 v_i + (1-\beta_2) g \odot g \\
    \hat v_i &\leftarrow \max(v_i, \hat v_i) \qquad\text{(AMSGrad; for Adam } \hat v_i = v_i)\\
    y &\leftarrow y - \eta_l\, m / \sqrt{\hat v_i}

and sends :math:`\hat v_i` beside its displacement; the server's v is their mean.

Sun et al., "Efficient Federated Learning via Local Adaptive Amended Optimizer with Linear Speedup",
Algorithms 2 and 3.  Choices made here where the paper is silent: K steps are taken (the listing
counts K-1); v_i starts at the broadcast v as v̂_i does; there is no epsilon in the denominator and
no bias correction, since v >= epsilon_v² > 0 keeps it finite, and the server floors v at epsilon_v²
on every round; v starts at epsilon_v² = 1e-16, as in the listing, where the paper's text has 1e-8
for "the initial second-order term"; the weights of m and v are the usual ones (the paper's
Algorithms 1 and 2 print them the other way round).  Weight decay is ``coupled`` (λy is added to g)
or, with ``decoupled_weight_decay``, λy is added to m/√v̂; either way it is part of the local
direction, so a correction around this rule scales it as it scales the rest.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import ClassVar

import torch
from torch import Tensor

from ...devices import has_fused
from ...errors import require
from ..part import LocalRule, Moment, Names, Round
from ..vectors import Vector, Vectors

__all__ = ["AMSGrad", "Adam", "SharedAdam", "check_betas"]


@dataclass(frozen=True, kw_only=True)
class Adam(LocalRule):
    """The base of Adam's family: hyper-parameters and torch's fused step; nothing is shared."""

    lr: float = 1e-3
    weight_decay: float = 1e-2
    betas: tuple[float, float] = (0.9, 0.99)
    """Weights of the old momentum and the old second moment in their running means."""
    eps: float = 1e-8
    """Smallest root of the second moment; it keeps the first steps finite."""
    decoupled_weight_decay: bool = False
    """Whether weight decay acts beside the adaptive step (AdamW) instead of in the gradient."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_betas(self.betas)
        require(self.eps > 0, f"eps is {self.eps}; it must be positive: v starts at eps²")

    def check_eps(self, x: Vector) -> None:
        """Raise an error if v would start at 0 in the type of the parameters."""
        for t in x:
            tiny = torch.finfo(t.dtype).tiny
            require(
                self.eps**2 >= tiny,
                f"eps² is {self.eps**2:g} and vanishes in {t.dtype}, whose smallest normal number"
                f" is {tiny:g}; keep the parameters in float32 and use autocast, or raise eps",
            )

    def _fused(
        self,
        client: Vectors,
        g: Vector,
        lr: float,
        *,
        v_hat: Vector | None = None,
        eps: float = 0.0,
        longer: float = 1.0,
    ) -> None:
        """Take a step; ``longer`` scales its adaptive part, but not the weight decay."""
        if not has_fused(client.y.device):
            self._plain(client, g, lr, v_hat, eps, longer)
            return
        kernel = torch._fused_adamw_ if self.decoupled_weight_decay else torch._fused_adam_
        kernel(
            client.y.tensors,
            g.tensors,
            client.m.tensors,
            client.v_i.tensors,
            [] if v_hat is None else v_hat.tensors,
            [_late(t.device) for t in client.y],
            lr=lr * longer,
            beta1=self.betas[0],
            beta2=self.betas[1],
            weight_decay=self.weight_decay / (longer if self.decoupled_weight_decay else 1.0),
            eps=eps,
            amsgrad=v_hat is not None,
            maximize=False,
        )

    def _plain(
        self, client: Vectors, g: Vector, lr: float, v_hat: Vector | None, eps: float, longer: float
    ) -> None:
        """Take the same step on a device for which torch has no such kernel."""
        y, m, v = client.y, client.m, client.v_i
        decay, (beta1, beta2) = self.weight_decay, self.betas
        if self.decoupled_weight_decay:
            torch._foreach_mul_(y.tensors, 1 - lr * decay)
        else:
            g = g.add(y, alpha=decay)
        torch._foreach_lerp_(m.tensors, g.tensors, 1 - beta1)
        torch._foreach_lerp_(v.tensors, (g * g).tensors, 1 - beta2)
        if v_hat is not None:
            torch._foreach_maximum_(v_hat.tensors, v.tensors)
        root = (v if v_hat is None else v_hat).sqrt() + eps
        torch._foreach_addcdiv_(y.tensors, m.tensors, root.tensors, -lr * longer)

    def _corrected(self, client: Vectors, g: Vector, lr: float, c_m: float, c_v: float) -> None:
        """Take a step with m and v divided by these sums of their weights."""
        root = math.sqrt(c_v)
        self._fused(client, g, lr, eps=self.eps * root, longer=root / c_m)


@dataclass(frozen=True, kw_only=True)
class SharedAdam(Adam):
    """Adam on the client; the server averages and shares its second moment (LocalAdam)."""

    name = "adam"
    stacks = True
    down: ClassVar[Names] = ("v",)
    up: ClassVar[Names] = ("v_i",)
    moments: ClassVar[tuple[Moment, ...]] = (Moment("v_i", of="v"),)

    def start(self, server: Vectors) -> None:
        self.check_eps(server.x)
        server.v = server.x.full_like(self.eps**2)

    def begin(self, client: Vectors) -> None:
        client.m = client.y.zeros_like()
        client.v_i = client.v.clone()

    def move(self, client: Vectors, g: Vector, lr: float) -> None:
        self._fused(client, g, lr)

    def known(self, down: Vectors, r: Round) -> Vectors:
        return Vectors(v_i=down.v * self.betas[1] ** r.steps)

    def serve(self, server: Vectors, mean: Vectors, r: Round) -> None:
        server.v = mean[self.up[0]].clamp_min(self.eps**2)


@dataclass(frozen=True, kw_only=True)
class AMSGrad(SharedAdam):
    """AMSGrad on the client: Adam whose second moment never falls within a round."""

    name = "amsgrad"
    stacks = True
    up: ClassVar[Names] = ("v_hat",)
    moments = (Moment("v_hat", of="v", rising=True),)

    def begin(self, client: Vectors) -> None:
        super().begin(client)
        client.v_hat = client.v.clone()

    def move(self, client: Vectors, g: Vector, lr: float) -> None:
        self._fused(client, g, lr, v_hat=client.v_hat)

    def known(self, down: Vectors, r: Round) -> Vectors:
        return Vectors(v_hat=down.v)


def check_betas(betas: tuple[float, float]) -> None:
    """Raise an error unless these are the weights of two running means."""
    require(
        len(betas) == 2 and all(0 <= beta < 1 for beta in betas),
        f"betas is {betas}; it must be two numbers from 0 up to but not including 1",
    )


@cache
def _late(device: torch.device) -> Tensor:
    """Return a step count so large that torch's kernel corrects no bias: 1 - beta**step is 1."""
    return torch.tensor(1e9, device=device)
