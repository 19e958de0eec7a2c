"""Every named algorithm, written down once more from its source, and nothing of fedlada in it.

An oracle has the name of its algorithm.  It maps a problem and the settings to the server's model
after each round.  It follows the paper's listing or, where its docstring says so, the authors'
code.  Signs, letters and the order of the lines are theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import SimpleNamespace as Settings

import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn.functional import cross_entropy


class V:
    """Tensors, one for each parameter, with the arithmetic of vectors."""

    def __init__(self, tensors) -> None:
        self.tensors = [*tensors]

    def __iter__(self) -> Iterator[Tensor]:
        return iter(self.tensors)

    def _with(self, other, f: Callable) -> V:
        others = other.tensors if isinstance(other, V) else [other] * len(self.tensors)
        return V(f(a, b) for a, b in zip(self.tensors, others, strict=True))

    def __add__(self, other) -> V:
        return self._with(other, lambda a, b: a + b)

    def __sub__(self, other) -> V:
        return self._with(other, lambda a, b: a - b)

    def __mul__(self, other) -> V:
        return self._with(other, lambda a, b: a * b)

    def __truediv__(self, other) -> V:
        return self._with(other, lambda a, b: a / b)

    __rmul__, __radd__ = __mul__, __add__

    def each(self, f: Callable) -> V:
        return V(map(f, self.tensors))

    def sqrt(self) -> V:
        return self.each(torch.sqrt)

    def max(self, other) -> V:
        return self._with(other, lambda a, b: torch.maximum(a, torch.as_tensor(b, dtype=a.dtype)))

    @property
    def square(self) -> float:
        """The squared norm over all tensors."""
        return float(sum((t * t).sum() for t in self.tensors))


@dataclass
class Problem:
    """A federation whose cohorts are known."""

    model: torch.nn.Module
    clients: Sequence
    cohorts: Sequence[Sequence[int]]
    decay: float
    weighting: str = "uniform"

    @property
    def x0(self) -> V:
        return V(p.detach().clone() for p in self.model.parameters())

    @property
    def zero(self) -> V:
        return self.x0 * 0.0

    def full(self, value: float) -> V:
        return self.x0.each(lambda t: torch.full_like(t, value))

    def rounds(self, lr: float) -> Iterator[tuple[list[int], float]]:
        """Yield the cohort and the learning rate of each round."""
        for t, cohort in enumerate(self.cohorts):
            yield [*cohort], lr * self.decay**t

    def steps(self, i: int) -> int:
        return self.clients[i].steps

    def grad(self, y: V, i: int, k: int) -> V:
        """The gradient of client i's batch k at y."""
        point = [t.detach().clone().requires_grad_() for t in y]
        names = [name for name, _ in self.model.named_parameters()]
        inputs, labels = self.clients[i].batch(k)
        loss = cross_entropy(
            functional_call(self.model, dict(zip(names, point, strict=True)), (inputs,)), labels
        )
        return V(torch.autograd.grad(loss, point))

    def mean(self, values: Sequence, cohort: Sequence[int]):
        """The mean over a cohort, of vectors or numbers."""
        own = [len(self.clients[i]) if self.weighting == "examples" else 1 for i in cohort]
        total = None
        for value, weight in zip(values, own, strict=True):
            part = value * (weight / sum(own))
            total = part if total is None else total + part
        return total

    def mean_steps(self, cohort: Sequence[int]) -> float:
        return self.mean([float(self.steps(i)) for i in cohort], cohort)


Oracle = Iterator[V]


# ------------------------------------------------------------------------------ averaging


def sgd(p: Problem, x: V, i: int, eta: float, s: Settings) -> V:
    """K steps of client i from x: the local update of all methods that change the server alone."""
    y = x
    for k in range(p.steps(i)):
        y = y - eta * (p.grad(y, i, k) + s.weight_decay * y)
    return y


def fedavg(p: Problem, s: Settings) -> Oracle:
    """McMahan et al. 2017, with a server's lr."""
    x = p.x0
    for cohort, eta in p.rounds(s.lr):
        ys = [sgd(p, x, i, eta, s) for i in cohort]
        x = x + s.server_lr * (p.mean(ys, cohort) - x)
        yield x


def fednova(p: Problem, s: Settings) -> Oracle:
    """The authors' repository: cumulative gradients scaled by tau_eff / ||a_i||_1, no momentum."""
    x = p.x0
    for cohort, eta in p.rounds(s.lr):
        scaled = []
        for i in cohort:
            y, cumulative = x, p.zero
            for k in range(p.steps(i)):
                g = p.grad(y, i, k) + s.weight_decay * y
                cumulative, y = cumulative + eta * g, y - eta * g
            scaled.append(cumulative * (p.mean_steps(cohort) / p.steps(i)))
        x = x - s.server_lr * p.mean(scaled, cohort)
        yield x


# ------------------------------------------------------------ momentum, adaptivity on the server


def fedavgm(p: Problem, s: Settings) -> Oracle:
    """Hsu et al. 2019: v <- beta v + dw; w <- w - v, with a server's lr before v."""
    x, v = p.x0, p.zero
    for cohort, eta in p.rounds(s.lr):
        dw = p.mean([x - sgd(p, x, i, eta, s) for i in cohort], cohort)
        v = s.momentum * v + dw
        x = x - s.server_lr * v
        yield x


def fedacg(p: Problem, s: Settings) -> Oracle:
    """The authors' repository: lookahead, proximal term to the model sent, ServerM.aggregate.

    What is broadcast next is compared; the authors evaluate the model before the lead.
    """
    model, m = p.x0, p.zero
    for cohort, eta in p.rounds(s.lr):
        sent, ys = model + s.momentum * m, []
        for i in cohort:
            y = sent
            for k in range(p.steps(i)):
                y = y - eta * (p.grad(y, i, k) + s.weight_decay * y + s.mu * (y - sent))
            ys.append(y)
        m = s.momentum * m + (p.mean(ys, cohort) - sent)
        model = p.mean(ys, cohort)
        yield model + s.momentum * m


def fedexp(p: Problem, s: Settings) -> Oracle:
    """Jhunjhunwala et al. 2023, Algorithm 1."""
    x = p.x0
    for cohort, eta in p.rounds(s.lr):
        deltas = [sgd(p, x, i, eta, s) - x for i in cohort]
        mean = p.mean(deltas, cohort)
        squares = p.mean([delta.square for delta in deltas], cohort)
        x = x + s.server_lr * max(1.0, squares / (2 * (mean.square + s.server_eps))) * mean
        yield x


def fedopt(p: Problem, s: Settings, second_moment: Callable[[V, V], V]) -> Oracle:
    """Reddi et al. 2021, Algorithm 2."""
    beta1, _ = s.server_betas
    x, m, v = p.x0, p.zero, p.full(s.server_v0)
    for cohort, eta in p.rounds(s.lr):
        delta = p.mean([sgd(p, x, i, eta, s) - x for i in cohort], cohort)
        m = beta1 * m + (1 - beta1) * delta
        v = second_moment(v, delta)
        x = x + s.server_lr * m / (v.sqrt() + s.server_eps)
        yield x


def fedadam(p: Problem, s: Settings) -> Oracle:
    beta2 = s.server_betas[1]
    return fedopt(p, s, lambda v, d: beta2 * v + (1 - beta2) * d * d)


def fedyogi(p: Problem, s: Settings) -> Oracle:
    beta2 = s.server_betas[1]
    return fedopt(p, s, lambda v, d: v - (1 - beta2) * d * d * (v - d * d).each(torch.sign))


def fedadagrad(p: Problem, s: Settings) -> Oracle:
    return fedopt(p, s, lambda v, d: v + d * d)


def fedams(p: Problem, s: Settings) -> Oracle:
    """Wang, Lin and Chen 2022, Algorithm 1, option 1."""
    beta1, beta2 = s.server_betas
    x, m, v, v_hat = p.x0, p.zero, p.full(s.server_v0), p.zero
    for cohort, eta in p.rounds(s.lr):
        delta = p.mean([sgd(p, x, i, eta, s) - x for i in cohort], cohort)
        m = beta1 * m + (1 - beta1) * delta
        v = beta2 * v + (1 - beta2) * delta * delta
        v_hat = v_hat.max(v).max(s.server_eps)
        x = x + s.server_lr * m / v_hat.sqrt()
        yield x


# ------------------------------------------------------------------------ corrections of drift


def fedprox(p: Problem, s: Settings) -> Oracle:
    """Li et al. 2020, by K gradient steps on the proximal objective."""
    x = p.x0
    for cohort, eta in p.rounds(s.lr):
        ys = []
        for i in cohort:
            y = x
            for k in range(p.steps(i)):
                y = y - eta * (p.grad(y, i, k) + s.weight_decay * y + s.mu * (y - x))
            ys.append(y)
        x = x + s.server_lr * (p.mean(ys, cohort) - x)
        yield x


def scaffold(p: Problem, s: Settings, *, rho: float = 0.0, exp: bool = False) -> Oracle:
    """Karimireddy et al. 2020, Algorithm 1, option II, for gradients without weight decay.

    With ``rho`` the gradients are SAM's (FedGAMMA); with ``exp`` the server's step is FedExP's.
    """
    assert s.weight_decay == 0, "option II takes the displacement for a gradient"
    x, c, n = p.x0, p.zero, len(p.clients)
    own = [p.zero for _ in p.clients]
    for cohort, eta in p.rounds(s.lr):
        dy, dc = [], []
        for i in cohort:
            y = x
            for k in range(p.steps(i)):
                g = p.grad(y, i, k)
                if rho:
                    g = p.grad(y + rho * g / g.square**0.5, i, k)
                y = y - eta * (g - own[i] + c)
            plus = own[i] - c + (x - y) / (p.steps(i) * eta)
            dy.append(y - x)
            dc.append(plus - own[i])
            own[i] = plus
        mean, step = p.mean(dy, cohort), s.server_lr
        if exp:
            squares = p.mean([d.square for d in dy], cohort)
            step *= max(1.0, squares / (2 * (mean.square + s.server_eps)))
        x = x + step * mean
        c = c + len(cohort) / n * p.mean(dc, cohort)
        yield x


def scaffold_exp(p: Problem, s: Settings) -> Oracle:
    """Jhunjhunwala et al. 2023: SCAFFOLD's clients under FedExP's server step."""
    return scaffold(p, s, exp=True)


def feddyn(p: Problem, s: Settings, *, rho: float = 0.0) -> Oracle:
    """Acar et al. 2021, Algorithm 1, with h over all m clients; with ``rho``, FedLESAM-D."""
    x, h, m = p.x0, p.zero, len(p.clients)
    gradient = [p.zero for _ in p.clients]  # of L_i at theta_i
    old: dict[int, V] = {}
    for cohort, eta in p.rounds(s.lr):
        thetas = []
        for i in cohort:
            e = perturbation(old, i, x, rho)
            y = x
            for k in range(p.steps(i)):
                g = p.grad(y + e, i, k) + s.weight_decay * y
                y = y - eta * (g - gradient[i] + s.a * (y - x))
            gradient[i] = gradient[i] - s.a * (y - x)
            thetas.append(y)
        for theta in thetas:
            h = h - s.a / m * (theta - x)
        new = p.mean(thetas, cohort) - h / s.a
        x = x + s.server_lr * (new - x)
        yield x


def fedcm(p: Problem, s: Settings, *, rho: float = 0.0) -> Oracle:
    """Xu et al. 2021, Algorithm 2; with ``rho``, MoFedSAM (Qu et al. 2022, Algorithm 2).

    The weight decay is part of the gradient.
    """
    x, delta = p.x0, p.zero
    for cohort, eta in p.rounds(s.lr):
        sums = []
        for i in cohort:
            y = x
            for k in range(p.steps(i)):
                g = p.grad(y, i, k)
                if rho:
                    g = p.grad(y + rho * g / g.square**0.5, i, k)
                v = s.alpha * (g + s.weight_decay * y) + (1 - s.alpha) * delta
                y = y - eta * v
            sums.append(x - y)
        delta = p.mean(sums, cohort) / (eta * p.mean_steps(cohort))
        x = x - s.server_lr * p.mean(sums, cohort)
        yield x


# ----------------------------------------------------------------------------- flat minima


def fedsam(p: Problem, s: Settings) -> Oracle:
    """Qu et al. 2022, Algorithm 1; the norm is over all parameters."""
    x = p.x0
    for cohort, eta in p.rounds(s.lr):
        ys = []
        for i in cohort:
            y = x
            for k in range(p.steps(i)):
                g = p.grad(y, i, k)
                worst = y + s.rho * g / g.square**0.5
                y = y - eta * (p.grad(worst, i, k) + s.weight_decay * y)
            ys.append(y)
        x = x + s.server_lr * (p.mean(ys, cohort) - x)
        yield x


def mofedsam(p: Problem, s: Settings) -> Oracle:
    return fedcm(p, s, rho=s.rho)


def fedgamma(p: Problem, s: Settings) -> Oracle:
    return scaffold(p, s, rho=s.rho)


def perturbation(old: dict[int, V], i: int, x: V, rho: float) -> V:
    """FedLESAM's e from the model that client i received before; it receives x now."""
    way = old.get(i, x) - x
    old[i] = x
    return way * (rho / way.square**0.5 if way.square else 0.0)


def fedlesam(p: Problem, s: Settings, *, control: bool = False) -> Oracle:
    """Fan et al. 2024, Algorithm 1, with w_old at the first model seen; ``control``: FedLESAM-S."""
    assert not (control and s.weight_decay)
    x, c, old = p.x0, p.zero, {}
    own = [p.zero for _ in p.clients]
    for cohort, eta in p.rounds(s.lr):
        ys, changes = [], []
        for i in cohort:
            e = perturbation(old, i, x, s.rho)
            y = x
            for k in range(p.steps(i)):
                g = p.grad(y + e, i, k) + s.weight_decay * y
                y = y - eta * (g + (c - own[i] if control else p.zero))
            plus = own[i] - c + (x - y) / (p.steps(i) * eta)
            changes.append(plus - own[i])
            own[i] = plus
            ys.append(y)
        x = x + s.server_lr * (p.mean(ys, cohort) - x)
        c = c + len(cohort) / len(p.clients) * p.mean(changes, cohort)
        yield x


def fedlesam_s(p: Problem, s: Settings) -> Oracle:
    return fedlesam(p, s, control=True)


def fedlesam_d(p: Problem, s: Settings) -> Oracle:
    return feddyn(p, s, rho=s.rho)


# -------------------------------------------------------------------------- adaptive clients


def fedlada(p: Problem, s: Settings, *, amsgrad: bool = True, alpha: float | None = None) -> Oracle:
    """Sun et al., Algorithm 3, with K steps; with alpha 1 and without the maximum, LocalAdam."""
    (beta1, beta2), alpha = s.betas, s.alpha if alpha is None else alpha
    x, g_a, v = p.x0, p.zero, p.full(s.eps**2)
    for cohort, eta in p.rounds(s.lr):
        ys, v_hats = [], []
        for i in cohort:
            y, m, v_i, v_hat = x, p.zero, v, v
            for k in range(p.steps(i)):
                g = p.grad(y, i, k) + s.weight_decay * y
                m = beta1 * m + (1 - beta1) * g
                v_i = beta2 * v_i + (1 - beta2) * g * g
                v_hat = v_hat.max(v_i) if amsgrad else v_i
                y = y - eta * (alpha * m / v_hat.sqrt() + (1 - alpha) * g_a)
            ys.append(y)
            v_hats.append(v_hat)
        v = p.mean(v_hats, cohort).max(s.eps**2)
        before, x = x, x + s.server_lr * (p.mean(ys, cohort) - x)
        g_a = (before - x) / (s.server_lr * eta * p.mean_steps(cohort))
        yield x


def fedlada_paper(p: Problem, s: Settings) -> Oracle:
    return fedlada(p, s)


def localadam(p: Problem, s: Settings) -> Oracle:
    """Sun et al., Algorithm 2, with v averaged, as their table of traffic says."""
    return fedlada(p, s, amsgrad=False, alpha=1.0)


def row_mean(t: Tensor) -> Tensor:
    return t.flatten(1).mean(1).reshape(-1, *[1] * (t.dim() - 1)) if t.dim() > 1 else t


def fedlada_rows(p: Problem, s: Settings) -> Oracle:
    """From the docstring of AMSGradRows: one v per row, and the mean before the maximum."""
    beta1, beta2 = s.betas
    x, g_a, v = p.x0, p.zero, p.full(s.eps**2).each(row_mean)
    for cohort, eta in p.rounds(s.lr):
        ys, v_hats = [], []
        for i in cohort:
            y, m, v_i, v_hat = x, p.zero, v, v
            for k in range(p.steps(i)):
                g = p.grad(y, i, k) + s.weight_decay * y
                m = beta1 * m + (1 - beta1) * g
                v_i = beta2 * v_i + (1 - beta2) * (g * g).each(row_mean)
                v_hat = v_hat.max(v_i)
                y = y - eta * (s.alpha * m / v_hat.sqrt() + (1 - s.alpha) * g_a)
            ys.append(y)
            v_hats.append(v_hat)
        v = p.mean(v_hats, cohort).max(s.eps**2)
        d = x - p.mean(ys, cohort)
        g_a, x = d / (eta * p.mean_steps(cohort)), x - s.server_lr * d
        yield x


def fedlalr(p: Problem, s: Settings) -> Oracle:
    """Sun et al. 2023 (2309.09719), Algorithm 1: x, m and v-hat are averaged and sent back."""
    beta1, beta2 = s.betas
    x, m, v = p.x0, p.zero, p.full(s.eps**2)
    for cohort, eta in p.rounds(s.lr):
        ys, ms, v_hats = [], [], []
        for i in cohort:
            y, m_i, v_i, v_hat = x, m, v, v
            for k in range(p.steps(i)):
                g = p.grad(y, i, k) + s.weight_decay * y
                m_i = beta1 * m_i + (1 - beta1) * g
                v_i = beta2 * v_i + (1 - beta2) * g * g
                v_hat = v_hat.max(v_i)
                y = y - eta * m_i / v_hat.sqrt()
            ys.append(y)
            ms.append(m_i)
            v_hats.append(v_hat)
        x = x + s.server_lr * (p.mean(ys, cohort) - x)
        m, v = p.mean(ms, cohort), p.mean(v_hats, cohort)
        yield x


def fedada2(p: Problem, s: Settings) -> Oracle:
    """The authors' repository: Adam_noBC, from zero, on both sides."""
    beta1, beta2 = s.betas
    server1, server2 = s.server_betas
    x, m, v = p.x0, p.zero, p.full(s.server_v0)
    for cohort, eta in p.rounds(s.lr):
        deltas = []
        for i in cohort:
            y, m_i, v_i = x, p.zero, p.zero
            for k in range(p.steps(i)):
                g = p.grad(y, i, k) + s.weight_decay * y
                m_i = beta1 * m_i + (1 - beta1) * g
                v_i = beta2 * v_i + (1 - beta2) * g * g
                y = y - eta * m_i / (v_i.sqrt() + s.eps)
            deltas.append(y - x)
        delta = p.mean(deltas, cohort)
        m = server1 * m + (1 - server1) * delta
        v = server2 * v + (1 - server2) * delta * delta
        x = x + s.server_lr * m / (v.sqrt() + s.server_eps)
        yield x


def fedlion(p: Problem, s: Settings) -> Oracle:
    """The authors' repository: Lion's steps, its momentum averaged with the model."""
    beta1, beta2 = s.betas
    x, m = p.x0, p.zero
    for cohort, eta in p.rounds(s.lr):
        ys, ms = [], []
        for i in cohort:
            y, m_i = x, m
            for k in range(p.steps(i)):
                g = p.grad(y, i, k)
                u = (beta1 * m_i + (1 - beta1) * g).each(torch.sign)
                m_i = beta2 * m_i + (1 - beta2) * g
                y = y - eta * (u + s.weight_decay * y)
            ys.append(y)
            ms.append(m_i)
        x = x + s.server_lr * (p.mean(ys, cohort) - x)
        m = p.mean(ms, cohort)
        yield x


def localadamw(p: Problem, s: Settings) -> Oracle:
    """torch's AdamW, made anew in every round by every client."""
    x = p.x0
    for cohort, eta in p.rounds(s.lr):
        ys = []
        for i in cohort:
            own = [torch.nn.Parameter(t.clone()) for t in x]
            inner = torch.optim.AdamW(
                own, lr=eta, betas=s.betas, eps=s.eps, weight_decay=s.weight_decay
            )
            for k in range(p.steps(i)):
                for a, g in zip(own, p.grad(V(own), i, k), strict=True):
                    a.grad = g
                inner.step()
            ys.append(V(a.detach() for a in own))
        x = x + s.server_lr * (p.mean(ys, cohort) - x)
        yield x


def diloco(p: Problem, s: Settings) -> Oracle:
    """Douillard et al. 2023, Algorithm 1, as in PrimeIntellect's repository.

    torch's AdamW in each worker, kept between rounds; torch's SGD, nesterov, on the mean of x - y.
    """
    outer = [torch.nn.Parameter(t) for t in p.x0]
    optimizer = torch.optim.SGD(outer, lr=s.server_lr, momentum=s.momentum, nesterov=True)
    workers: dict[int, tuple[list, torch.optim.Optimizer]] = {}
    for cohort, eta in p.rounds(s.lr):
        deltas = []
        for i in cohort:
            if i not in workers:
                own = [torch.nn.Parameter(t) for t in p.x0]
                workers[i] = (
                    own,
                    torch.optim.AdamW(own, betas=s.betas, eps=s.eps, weight_decay=s.weight_decay),
                )
            own, inner = workers[i]
            inner.param_groups[0]["lr"] = eta
            with torch.no_grad():
                for a, b in zip(own, outer, strict=True):
                    a.copy_(b)
            for k in range(p.steps(i)):
                for a, g in zip(own, p.grad(V(own), i, k), strict=True):
                    a.grad = g
                inner.step()
            deltas.append(V((b - a).detach() for a, b in zip(own, outer, strict=True)))
        for a, g in zip(outer, p.mean(deltas, cohort), strict=True):
            a.grad = g
        optimizer.step()
        yield V(a.detach().clone() for a in outer)


def fedadamw(p: Problem, s: Settings) -> Oracle:
    """Liu et al. 2025 (2510.27486): m from 0, corrected by beta1^k; block means of v, by beta2^t.

    A block is a row, v starts at eps², and the paper's alpha is 1 - alpha here.
    """
    beta1, beta2 = s.betas
    x, delta, count = p.x0, p.zero, 0.0
    v = p.full(s.eps**2).each(row_mean)
    for cohort, eta in p.rounds(s.lr):
        ys, vs = [], []
        for i in cohort:
            y, m, v_i = x, p.zero, p.zero + v
            for k in range(1, p.steps(i) + 1):
                g = p.grad(y, i, k - 1)
                m = beta1 * m + (1 - beta1) * g
                v_i = beta2 * v_i + (1 - beta2) * g * g
                m_hat, v_hat = m / (1 - beta1**k), v_i / (1 - beta2 ** (count + k))
                adam = m_hat / (v_hat.sqrt() + s.eps)
                y = y - eta * (adam + (1 - s.alpha) * delta + s.weight_decay * y)
            ys.append(y)
            vs.append(v_i.each(row_mean))
        v = p.mean(vs, cohort).max(s.eps**2)
        count += p.mean_steps(cohort)
        d = x - p.mean(ys, cohort)
        delta, x = d / (eta * p.mean_steps(cohort)), x - s.server_lr * d
        yield x


# ------------------------------------------------------------------------------------ Muon


def orthogonal(matrix: Tensor) -> Tensor:
    """Five quintic Newton-Schulz steps, as in torch.optim.Muon, in the matrix's own type."""
    u = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T
    u = u / u.norm().clamp(min=1e-7)
    for _ in range(5):
        gram = u @ u.T
        u = 3.4445 * u - 4.7750 * (gram @ u) + 2.0315 * (gram @ (gram @ u))
    return u if matrix.shape[0] <= matrix.shape[1] else u.T


def orth(m: V) -> V:
    """The factor of each tensor, as long as AdamW's step; a vector's is the library's choice."""

    def one(t: Tensor) -> Tensor:
        if t.dim() < 2:
            return t / t.norm().clamp_min(1e-7) * (0.2 * len(t) ** 0.5)
        rows = t.reshape(len(t), -1)
        return (0.2 * max(rows.shape) ** 0.5 * orthogonal(rows)).reshape(t.shape)

    return m.each(one)


def fedmuon(p: Problem, s: Settings, *, alpha: float | None = None, begin="shared") -> Oracle:
    """Liu et al. 2025 (2510.27403), where M_i <- beta M_i + G_i and M_i begins at the mean of all.

    With alpha 1 and M_i from 0 it is their Local Muon, with the client's own M_i Takezawa et al.'s.
    """
    alpha = s.alpha if alpha is None else alpha
    x, mean_m, delta = p.x0, p.zero, p.zero
    own = [p.zero for _ in p.clients]
    for cohort, eta in p.rounds(s.lr):
        ys, ms = [], []
        for i in cohort:
            y, m = x, {"shared": mean_m, "kept": own[i], "fresh": p.zero}[begin]
            for k in range(p.steps(i)):
                m = s.beta * m + p.grad(y, i, k)
                y = y - eta * (alpha * (orth(m) + s.weight_decay * y) + (1 - alpha) * delta)
            own[i] = m
            ys.append(y)
            ms.append(m)
        mean_m, d = p.mean(ms, cohort), x - p.mean(ys, cohort)
        delta, x = d / (eta * p.mean_steps(cohort)), x - s.server_lr * d
        yield x


def sharedmuon(p: Problem, s: Settings) -> Oracle:
    return fedmuon(p, s, alpha=1.0)


def keptmuon(p: Problem, s: Settings) -> Oracle:
    return fedmuon(p, s, alpha=1.0, begin="kept")


def freshmuon(p: Problem, s: Settings) -> Oracle:
    return fedmuon(p, s, alpha=1.0, begin="fresh")


def muloco(p: Problem, s: Settings) -> Oracle:
    """Thérien et al. 2025 (2505.23725): DiLoCo, whose workers take Muon's steps and keep M."""
    outer = [torch.nn.Parameter(t) for t in p.x0]
    optimizer = torch.optim.SGD(outer, lr=s.server_lr, momentum=s.momentum, nesterov=True)
    own = [p.zero for _ in p.clients]
    for cohort, eta in p.rounds(s.lr):
        x, deltas = V(a.detach().clone() for a in outer), []
        for i in cohort:
            y = x
            for k in range(p.steps(i)):
                own[i] = s.beta * own[i] + p.grad(y, i, k)
                y = y - eta * (orth(own[i]) + s.weight_decay * y)
            deltas.append(x - y)
        for a, g in zip(outer, p.mean(deltas, cohort), strict=True):
            a.grad = g
        optimizer.step()
        yield V(a.detach().clone() for a in outer)


def fedmuon_corrected(p: Problem, s: Settings) -> Oracle:
    """Takezawa et al. 2025 (2509.26337): steps along the LMO of M_i - C_i + C.

    M_i <- beta M_i + (1 - beta) G_i is kept by the client, C_i is its last M_i, and
    C <- C + 1/n of the sum of the changes.
    """
    x, c, n = p.x0, p.zero, len(p.clients)
    momenta = [p.zero for _ in p.clients]
    controls = [p.zero for _ in p.clients]
    for cohort, eta in p.rounds(s.lr):
        ys, changes = [], p.zero
        for i in cohort:
            y = x
            for k in range(p.steps(i)):
                momenta[i] = s.beta * momenta[i] + (1 - s.beta) * p.grad(y, i, k)
                y = y - eta * (orth(momenta[i] - controls[i] + c) + s.weight_decay * y)
            changes = changes + (momenta[i] - controls[i])
            controls[i] = momenta[i]
            ys.append(y)
        x = x + s.server_lr * (p.mean(ys, cohort) - x)
        c = c + changes / n
        yield x
