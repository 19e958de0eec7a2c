"""The client's optimizer: a real ``torch.optim.Optimizer`` whose step runs a part's step."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable
from typing import Any, Literal, get_args, overload

import torch
from torch import Tensor, nn
from torch.optim.optimizer import ParamsT

from ..algorithms import LocalRule, Part, Vector, Vectors, rebuild
from ..errors import FedladaError, require

__all__ = ["FederatedOptimizer", "Only"]

Only = Literal["shared", "personal"]

# Torch wraps these two methods to hide them from torch.compile, and the wrappers import its
# compiler.  That costs more than a CPU second per process, and on Flower every client of every
# round runs in a new process.
_add_param_group = inspect.unwrap(torch.optim.Optimizer.add_param_group)
_zero_grad = inspect.unwrap(torch.optim.Optimizer.zero_grad)


class FederatedOptimizer(torch.optim.Optimizer):
    """Runs a part's step on a model's parameters, for one client and one round.

    A training loop can use it like any optimizer: schedulers, ``clip_grad_norm_``, autocast,
    gradient accumulation and parameter groups work.  A group may have its own ``lr`` and
    ``weight_decay``; its rate is taken as a multiple of the round's rate.  A scheduler must scale
    all groups by the same factor.  A missing gradient is treated as zero.  An algorithm with a
    second gradient in each step (SAM) needs ``step(closure)``.

    ``own`` are the vectors of the personal parameters, which stay on the client.  The algorithm's
    local rule trains them, without its corrections: a correction compares a client with the
    server's model, and the server has no personal parameters.  The rule starts over in every
    round, as it does in the first round of a run, so no moments of it have to be kept.  Its rate
    is the round's, so a rate that suits the shared parameters suits these; a group may have
    another.
    """

    def __init__(
        self,
        params: ParamsT,
        *,
        part: Part,
        c: Vectors,
        parameters: Iterable[nn.Parameter],
        lr: float,
        own: Vectors | None = None,
        personal: Iterable[nn.Parameter] = (),
    ) -> None:
        local = list(part.chain())[-1]
        assert isinstance(local, LocalRule)
        super().__init__(params, {"lr": lr, "weight_decay": local.weight_decay})
        self._part, self._c, self._parameters = part, c, list(parameters)
        self._local, self._personal = local, list(personal)
        self._variants: dict[tuple[bool, float, float], Part] = {}
        self._rates: list[float] = []
        self._scales = [float(group["lr"]) / lr for group in self.param_groups]
        self._own = [] if own is None else self._split(own, self._personal)
        self._blocks = self._split(c, self._parameters)

    @property
    def steps(self) -> int:
        """Number of steps taken."""
        return len(self._rates)

    @property
    def lr_sum(self) -> float:
        """The sum of the round's learning rate over the steps taken."""
        return math.fsum(self._rates)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group; only the constructor may do so."""
        require(
            not hasattr(self, "_blocks"),
            "a group cannot be added to a federated optimizer, because client and server have"
            " agreed on the federated parameters; freeze or unfreeze parameters before the run",
        )
        _add_param_group(self, param_group)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Reset the gradients of all parameters."""
        _zero_grad(self, set_to_none)

    @overload
    def step(self, closure: None = None, *, only: Only | None = None) -> None: ...
    @overload
    def step(self, closure: Callable[[], float], *, only: Only | None = None) -> float: ...
    def step(
        self, closure: Callable[[], float] | None = None, *, only: Only | None = None
    ) -> float | None:
        """Take one step of the part; ``closure`` computes the gradient and returns the loss.

        With ``only="personal"`` the shared parameters stay where they are and the step does not
        count; with ``only="shared"`` the personal ones stay (FedRep trains them in turns).
        """
        if only is not None:
            require(
                only in get_args(Only) and bool(self._own),
                f"only is {only!r}; it must be 'shared' or 'personal', and the plan must name"
                " personal parameters, such as personal=('head.*',)",
            )
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        rate = self._rate()
        with torch.no_grad():
            if only != "personal":
                self._step_shared(closure, rate)
            if self._own and only != "shared":
                g = Vector(map(_gradient, self._personal))
                for index, positions, c in self._own:
                    self._variant(self._local, index).step(c, g.take(positions), rate)
        return loss

    def _step_shared(self, closure: Callable[[], float] | None, rate: float) -> None:
        g = self._gradient()
        displacement = self._part.probe(self._c, g)
        if displacement is not None:
            g = self._gradient_at(displacement, closure)
        for index, positions, c in self._blocks:
            self._variant(self._part, index).step(c, g.take(positions), rate)
        self._rates.append(rate)

    def _gradient(self) -> Vector:
        return self._c.y.alike(map(_gradient, self._parameters))

    def _gradient_at(self, displacement: Vector, closure: Callable[[], float] | None) -> Vector:
        """Return the gradient at y plus a displacement, and leave y as it is."""
        require(
            closure is not None,
            "this algorithm takes a second gradient in each step, so step() needs a closure: call"
            " optimizer.step(closure), where closure() zeroes the gradients, computes the loss of"
            " the batch, calls backward() on it, clips if you clip, and returns the loss",
        )
        assert closure is not None
        y = self._c.y
        before = y.clone()
        y.add_(displacement)
        with torch.enable_grad():
            closure()
        y.copy_(before)
        return self._gradient()

    def _rate(self) -> float:
        """Return the round's current rate; all groups must agree on it."""
        rates = [
            float(group["lr"]) / scale
            for group, scale in zip(self.param_groups, self._scales, strict=True)
        ]
        if not all(math.isclose(rate, rates[0], rel_tol=1e-6) for rate in rates):
            raise FedladaError(
                f"the learning rates of the groups have changed by different factors ({rates}); a"
                " scheduler inside a round must scale all groups by the same factor, because the"
                " server uses one rate for the whole round"
            )
        return rates[0]

    def _variant(self, part: Part, index: int) -> Part:
        """Return the part with the weight decay and rate of a group."""
        key = (part is self._part, self.param_groups[index]["weight_decay"], self._scales[index])
        if key not in self._variants:
            settings = {"weight_decay": key[1], "lr_scale": key[2]}
            self._variants[key] = rebuild(
                part, lambda part: dict(settings) if isinstance(part, LocalRule) else {}
            )
        return self._variants[key]

    def _split(
        self, c: Vectors, federated: list[nn.Parameter]
    ) -> list[tuple[int, list[int], Vectors]]:
        """Return blocks of tensors for one kernel call each: one group, device and dtype."""
        where = {
            id(p): index for index, group in enumerate(self.param_groups) for p in group["params"]
        }
        missing = sum(id(p) not in where for p in federated)
        require(
            missing == 0,
            f"{missing} of the model's {len(federated)} trainable parameters are in no group of"
            " the optimizer; add them, or freeze them with requires_grad_(False)",
        )
        blocks: dict[tuple[int, torch.device, torch.dtype], list[int]] = {}
        for position, p in enumerate(federated):
            blocks.setdefault((where[id(p)], p.device, p.dtype), []).append(position)
        return [
            (index, positions, c.take(positions)) for (index, _, _), positions in blocks.items()
        ]


def _gradient(p: nn.Parameter) -> Tensor:
    g = p.grad
    if g is None:
        return torch.zeros_like(p)
    if g.is_sparse:
        raise FedladaError(
            "a gradient is sparse; federated vectors are dense: use nn.Embedding(sparse=False)"
        )
    # The fused kernels walk through memory, so both tensors need the same strides.
    return g if g.stride() == p.stride() else torch.empty_like(p).copy_(g)
