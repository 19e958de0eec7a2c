r"""Local training that protects each example of a client (DP-SGD).

.. math::
    g = \frac{1}{B} \Bigl( \sum_{j \in \text{batch}} g_j \min\bigl(1, C / \|g_j\|\bigr)
        + z\,C\,\mathcal N(0, I) \Bigr)

An example is in a batch by its own chance B/n, independent of all others, and B is a constant.
Abadi et al., "Deep Learning with Differential Privacy", 2016.  Whatever a client computes from such
gradients, every vector of every algorithm, is as private as they are, so all algorithms, the guard
and robust rules work unchanged.  Batches and noise come from the system's entropy.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.modules.batchnorm import _NormBase
from torch.optim import Optimizer

from ..errors import FedladaError, require
from ..training import LocalTraining
from ..training.diagnosis import explained
from ..training.examples import source_for
from ..training.pairing import paired_loss
from .account import Sampled
from .noise import normal, uniform

__all__ = ["PrivateTraining"]

TOGETHER = 2**25
"""Numbers in the gradients of single examples that are held at once."""


@dataclass(frozen=True, kw_only=True)
class PrivateTraining(LocalTraining):
    """Trains with the clipped gradient of each example, and noise; returns no metrics.

    ``batch_size`` is the mean size of a batch.  Not protected: the number of examples, the time
    that training takes, and what a model keeps in buffers.
    """

    noise: float
    """Standard deviation of the noise, in units of ``clip``; 0 is no noise, and no privacy."""
    clip: float = 1.0
    """Greatest length of the gradient of one example; longer ones are shortened."""
    seeded: bool = False
    """Whether batches and noise come from torch's generator, for runs that can be repeated.  The
    server could then compute the noise: such a run measures accuracy and protects nobody."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.noise >= 0, f"noise is {self.noise}; it must be 0 or positive")
        require(self.clip > 0, f"clip is {self.clip}; it must be positive")
        require(
            self.clip_norm is None,
            f"clip_norm is {self.clip_norm} and shortens the gradient of a batch; leave it out,"
            " because clip shortens the gradient of each example",
        )
        require(
            self.autocast is None,
            f"autocast is {self.autocast!r}, and the gradient of each example is computed in the"
            " type of the model; leave autocast out",
        )

    def epsilon(self, examples: int, *, rounds: int, delta: float, gradients: int = 1) -> float:
        """Return the epsilon of each example of a client that takes part in so many rounds.

        An algorithm that takes a second gradient in each step (SAM) has ``gradients`` of 2.
        """
        count = self.steps_with(examples) * rounds * gradients
        rate = min(1.0, self.batch_size / examples)
        return Sampled(rate=rate, count=count).epsilon(self.noise, delta)

    def __call__(self, model: nn.Module, data: object, optimizer: Optimizer) -> dict[str, float]:
        """Train ``model`` in place."""
        model.train()
        source = source_for(model, data)
        norm = next((n for n, m in model.named_modules() if _mixes_examples(m)), None)
        require(
            norm is None,
            f"the layer {norm!r} mixes the examples of a batch, so one example has no gradient of"
            " its own; use GroupNorm or LayerNorm",
        )
        with explained() as current:
            for rows in self.batches(len(source)):
                batch = self._batch(model, *source.batch(rows), current) if len(rows) else None
                optimizer.step(partial(self._noised, model, optimizer, batch))
        return {}

    def batches(self, examples: int) -> Iterator[Tensor]:
        """Yield the rows of each batch, in which every row is by its own chance."""
        require(examples > 0, "a client has no examples; leave it out of the federation")
        draw: Callable[[int], Tensor] = torch.rand if self.seeded else uniform
        for _ in range(self.steps_with(examples)):
            yield (draw(examples) < self.batch_size / examples).nonzero().flatten()

    def _noised(
        self, model: nn.Module, optimizer: Optimizer, batch: tuple[Tensor, Tensor] | None
    ) -> float:
        """Set the gradients to the noised mean of the examples' clipped gradients."""
        optimizer.zero_grad()
        named = {n: p for n, p in model.named_parameters() if p.requires_grad}
        sums = [torch.zeros_like(p) for p in named.values()]
        if batch is not None:
            size = max(1, TOGETHER // sum(p.numel() for p in named.values()))
            for inputs, labels in zip(*(torch.split(part, size) for part in batch), strict=True):
                for total, part in zip(
                    sums, self._clipped(model, named, inputs, labels), strict=True
                ):
                    total += part
        draw = torch.randn_like if self.seeded else normal
        for p, total in zip(named.values(), sums, strict=True):
            if self.noise:
                total += self.noise * self.clip * draw(p.detach())
            p.grad = total / self.batch_size
        return 0.0

    def _clipped(
        self, model: nn.Module, named: dict[str, nn.Parameter], inputs: Tensor, labels: Tensor
    ) -> Iterator[Tensor]:
        """Yield the sum of the examples' clipped gradients, parameter by parameter."""
        loss = self.loss_for(labels)

        def loss_of(values: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
            return paired_loss(loss, functional_call(model, values, (x[None],)), y[None])

        values = {n: p.detach() for n, p in named.items()}
        try:
            each = vmap(grad(loss_of), in_dims=(None, 0, 0), randomness="different")(
                values, inputs, labels
            )
        except (RuntimeError, NotImplementedError) as error:
            raise FedladaError(
                f"torch.func.vmap cannot take the gradient of each example of this model ({error});"
                " leave out what it names, or train another model"
            ) from error
        lengths = torch.stack([g.flatten(1).norm(dim=1) for g in each.values()]).norm(dim=0)
        factors = (self.clip / lengths.clamp_min(torch.finfo(lengths.dtype).tiny)).clamp_max(1.0)
        good = lengths.isfinite()
        if not good.all():
            warnings.warn(
                f"the gradients of {int((~good).sum())} examples are not finite; they count as"
                " nothing: look for missing or unscaled inputs",
                stacklevel=2,
            )
        for g in each.values():
            yield torch.einsum("i,i...->...", factors[good], g[good])


def _mixes_examples(module: nn.Module) -> bool:
    return isinstance(module, _NormBase) and not isinstance(
        module, nn.InstanceNorm1d | nn.InstanceNorm2d | nn.InstanceNorm3d
    )
