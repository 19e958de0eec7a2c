"""One optimizer step on ResNet-18-GN's parameters against torch's own fused optimizers.

`fedlada-rows` has one second moment per row; torch has no such optimizer, so it is held against the
same AMSGrad as `fedlada`.  The last rows are the kernels alone: torch's own fused AMSGrad, which
passes over y, g, m, v and v̂, the rule by rows, and the amendment, which passes over y and g_a.

Run: python benchmarks/step.py --check
"""

from collections.abc import Callable

import torch

import measure
from fedlada import Algorithm, algorithm
from fedlada.algorithms import Vector
from fedlada.algorithms.local import AMSGrad
from fedlada.algorithms.local.amsgrad_rows import AMSGradRows
from fedlada.engines import FederatedOptimizer, LocalRound, ServerState
from fedlada.models import ResNet18
from fedlada.protocol.messages import Task

GOALS = {"fedlada": 1.25, "fedlada-rows": 1.0, "fedavg": 1.25}


def model_with_gradients() -> torch.nn.Module:
    torch.manual_seed(0)
    model = ResNet18(10)
    for p in model.parameters():
        p.grad = torch.randn_like(p)
    return model


def federated(chosen: Algorithm) -> FederatedOptimizer:
    model = model_with_gradients()
    state = ServerState.new(chosen, Vector(p.detach().clone() for p in model.parameters()))
    task = Task(round=0, seed=0, lr=chosen.lr(0), vectors=state.vectors)
    local = LocalRound(chosen, model, task, client=0)
    return local.optimizer()


def kernels() -> dict[str, Callable[[], object]]:
    optimizer = federated(algorithm("fedlada"))
    ((_, _, c),) = optimizer._blocks
    ((_, _, rows),) = federated(algorithm("fedlada-rows"))._blocks
    g = Vector(p.grad for p in optimizer.param_groups[0]["params"])
    return {
        "  AMSGradRows alone": lambda: AMSGradRows().step(rows, g, 1e-4),
        "  AMSGrad alone": lambda: AMSGrad().step(c, g, 1e-4),
        "  amendment alone": lambda: c.y.add_(c.g_a, alpha=-1e-3),
    }


def main() -> None:
    options = measure.arguments(__doc__.splitlines()[0])
    torch.set_num_threads(1)
    print(measure.machine())
    optimizers = {
        "fedlada": federated(algorithm("fedlada")),
        "fedlada-rows": federated(algorithm("fedlada-rows")),
        "torch Adam(amsgrad, fused)": torch.optim.Adam(
            model_with_gradients().parameters(), amsgrad=True, fused=True
        ),
        "fedavg": federated(algorithm("fedavg")),
        "torch SGD(fused)": torch.optim.SGD(
            model_with_gradients().parameters(), lr=0.1, fused=True
        ),
    }
    seconds = measure.alternate(
        {name: optimizer.step for name, optimizer in optimizers.items()} | kernels(), repeats=50
    )
    for name, values in seconds.items():
        print(f"{name:28} {1e3 * sorted(values)[len(values) // 2]:7.2f} ms")
    figures = {
        name: measure.paired(seconds[name], seconds["torch Adam(amsgrad, fused)"])
        for name in ("fedlada", "fedlada-rows")
    } | {
        "fedavg": measure.paired(seconds["fedavg"], seconds["torch SGD(fused)"]),
    }
    measure.finish(options, figures, goal=GOALS, what="step time over torch's, median of 50 pairs")


if __name__ == "__main__":
    main()
