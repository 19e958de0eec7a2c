"""FedLADA's step as one compiled kernel over flat buffers: what it would gain, and its price.

The library does not have it: gradients must be gathered into the flat buffer, and compiling takes
longer than the goal.  The compiler's cache on disk is empty at the start, as for a new user.

Run: python benchmarks/compiled.py --check
"""

import os
import tempfile

os.environ["TORCHINDUCTOR_CACHE_DIR"] = tempfile.mkdtemp(prefix="fedlada-compiled-")
os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"  # so that the compiler is a child of this process

import torch

import measure
from fedlada import algorithm
from fedlada.algorithms import Vector
from step import federated, model_with_gradients

GOALS = {"gathered": 1.25, "CPU seconds to compile": 10.0}
ALPHA, BETA1, BETA2, EPS, DECAY = 0.1, 0.9, 0.99, 1e-8, 1e-3


def amended(
    y: torch.Tensor,
    g: torch.Tensor,
    m: torch.Tensor,
    v: torch.Tensor,
    v_hat: torch.Tensor,
    g_a: torch.Tensor,
    lr: torch.Tensor,
) -> None:
    """AMSGrad with coupled decay, amended, in place."""
    g = g + DECAY * y
    m.lerp_(g, 1 - BETA1)
    v.lerp_(g * g, 1 - BETA2)
    torch.maximum(v_hat, v, out=v_hat)
    y.sub_(lr * (ALPHA * m / (v_hat.sqrt() + EPS) + (1 - ALPHA) * g_a))


def main() -> None:
    options = measure.arguments(__doc__.splitlines()[0])
    torch.set_num_threads(1)
    print(measure.machine())
    theirs = model_with_gradients()
    torch_own = torch.optim.Adam(theirs.parameters(), amsgrad=True, fused=True)
    eager = federated(algorithm("fedlada"))
    parameters = [p.grad for p in model_with_gradients().parameters() if p.grad is not None]
    size = sum(p.numel() for p in parameters)
    flat = [torch.rand(size) for _ in range(6)]
    views = Vector(flat[1].split([p.numel() for p in parameters]))
    shaped = [view.view(p.shape) for view, p in zip(views, parameters, strict=True)]
    lr = torch.tensor(1e-4)
    compiled = torch.compile(amended)
    began = sum(os.times()[:4])
    expected = [t.clone() for t in flat]
    compiled(*flat, lr)
    seconds = sum(os.times()[:4]) - began
    amended(*expected, lr)
    print(f"largest difference from eager {float((flat[0] - expected[0]).abs().max()):.1e}")

    def gathered() -> None:
        torch._foreach_copy_(shaped, parameters)
        compiled(*flat, lr)

    found = measure.alternate(
        {
            "fedlada, as it is": eager.step,
            "torch Adam(amsgrad, fused)": torch_own.step,
            "compiled": lambda: compiled(*flat, lr),
            "gathered and compiled": gathered,
        },
        repeats=50,
    )
    for name, values in found.items():
        print(f"{name:28} {1e3 * sorted(values)[len(values) // 2]:7.2f} ms")
    base = found["torch Adam(amsgrad, fused)"]
    figures = {
        "as it is": measure.paired(found["fedlada, as it is"], base),
        "compiled": measure.paired(found["compiled"], base),
        "gathered": measure.paired(found["gathered and compiled"], base),
        "CPU seconds to compile": seconds,
    }
    measure.finish(options, figures, goal=GOALS, what="a compiled step over torch's fused AMSGrad")


if __name__ == "__main__":
    main()
