"""CPU time of a round of ``simulate`` against a bare PyTorch loop with the same local steps.

The two take turns, round by round, in one process: 10 clients, 10 steps of batch 50 each (with
``--cohort 3`` the server's own work weighs more).  The bare loop below is what somebody would write
for this one algorithm and nothing else; both must end in the same parameters, bit for bit.  Freed
memory stays with the process, as in `fedlada run`: else the figure would depend on which of the two
happens to lie at the end of the heap.

Run: python benchmarks/overhead.py --check
"""

import time

import torch
from torch import nn
from torch.nn.functional import cross_entropy

import measure
from fedlada import LocalTraining, algorithm, simulate
from fedlada.data import ClientData
from fedlada.models import LeNet, ResNet18
from fedlada.processes import keep_memory
from fedlada.protocol.seeds import seed_of
from fedlada.server import FixedSize

GOAL = 1.03
CLIENTS, STEPS, BATCH = 20, 10, 50
MODELS: dict[str, type[nn.Module]] = {"LeNet": LeNet, "ResNet-18-GN": ResNet18}
COPIES, ROUNDS = {"LeNet": 4, "ResNet-18-GN": 1}, {"LeNet": 5, "ResNet-18-GN": 3}
# The tightest first: on a small model the library's own work weighs most.
CASES = [(name, model) for model in MODELS for name in ("fedlada", "fedavg")]


def generated_clients() -> list[ClientData]:
    generator = torch.Generator().manual_seed(0)
    return [
        ClientData(
            torch.randn(500, 3, 32, 32, generator=generator),
            torch.randint(10, (500,), generator=generator),
        )
        for _ in range(CLIENTS)
    ]


class Bare:
    """FedAvg or FedLADA as a plain script has it."""

    def __init__(
        self,
        name: str,
        model: nn.Module,
        clients: list[ClientData],
        cohort: int,
        *,
        steps: int = STEPS,
        batch: int = BATCH,
    ) -> None:
        self.steps, self.batch = steps, batch
        self.settings = algorithm(name).settings()
        self.amended = name == "fedlada"
        self.clients, self.model, self.cohort, self.t = clients, model, cohort, 0
        self.sampler = FixedSize(cohort)
        self.params = list(model.parameters())
        self.x = [p.detach().clone() for p in self.params]
        self.v = [torch.full_like(p, self.settings.get("eps", 0) ** 2) for p in self.x]
        self.g_a = [torch.zeros_like(p) for p in self.x]
        self.late = [torch.tensor(1e9)] * len(self.x)

    def round(self) -> None:
        delta, v_sum = self.sums(), self.sums()
        self.collect(self.t, self.sampler.cohort(0, self.t, len(self.clients)), delta, v_sum)
        self.serve(delta, v_sum)

    def sums(self) -> list[torch.Tensor]:
        return [torch.zeros_like(p, dtype=torch.float64) for p in self.x]

    def collect(self, t: int, clients: list[int], delta: list, v_sum: list) -> None:
        lr = self.settings["lr"] * 0.998**t
        for i in clients:
            with torch.no_grad():
                torch._foreach_copy_(self.params, self.x)
            v_hat = self.train(self.clients[i], lr, seed_of(0, "client", t, i))
            with torch.no_grad():
                for j, p in enumerate(self.params):
                    delta[j] += self.x[j] - p
                    if self.amended:
                        v_sum[j] += v_hat[j]

    def serve(self, delta: list, v_sum: list) -> None:
        lr = self.settings["lr"] * 0.998**self.t
        for j in range(len(self.x)):
            mean = (delta[j] / self.cohort).float()
            self.x[j] = self.x[j] - self.settings["server_lr"] * mean
            self.g_a[j] = mean / (lr * self.steps)
            if self.amended:
                self.v[j] = (v_sum[j] / self.cohort).float().clamp_min(self.settings["eps"] ** 2)
        self.t += 1

    def train(self, data: ClientData, lr: float, seed: int) -> list[torch.Tensor]:
        self.model.train()
        m = [torch.zeros_like(p) for p in self.x] if self.amended else []
        v = [t.clone() for t in self.v] if self.amended else []
        v_hat = [t.clone() for t in self.v] if self.amended else []
        sgd = torch.optim.SGD(
            self.params, lr=lr, weight_decay=self.settings["weight_decay"], fused=True
        )
        order = torch.randperm(len(data), generator=torch.Generator().manual_seed(seed))
        total = torch.zeros(())
        for rows in order.split(self.batch)[: self.steps]:
            sgd.zero_grad()
            loss = cross_entropy(self.model(data.inputs[rows]), data.labels[rows])
            loss.backward()
            total += loss.detach()
            if not self.amended:
                sgd.step()
                continue
            with torch.no_grad():
                alpha, (beta1, beta2) = self.settings["alpha"], self.settings["betas"]
                torch._fused_adam_(
                    self.params, [p.grad for p in self.params], m, v, v_hat, self.late,
                    lr=lr * alpha, beta1=beta1, beta2=beta2, eps=0.0, amsgrad=True,
                    weight_decay=self.settings["weight_decay"], maximize=False,
                )  # fmt: skip
                torch._foreach_add_(self.params, self.g_a, alpha=-lr * (1 - alpha))
        return v_hat


def side_by_side(
    name: str, model: str, clients: list[ClientData], cohort: int
) -> dict[str, list[float]]:
    """CPU seconds of each round of both, in turns."""
    rounds = ROUNDS[model]
    run = simulate(
        MODELS[model](10),
        clients,
        algorithm=name,
        rounds=rounds + 1,
        train=LocalTraining(steps=STEPS, batch_size=BATCH),
        cohort=FixedSize(cohort),
    )
    # Both train the one working copy: where a model lies in memory can be worth 10 % of its time.
    bare, records = Bare(name, run._server._current(), clients, cohort), iter(run)
    seconds = measure.alternate(
        {"simulate": lambda: next(records), "bare": bare.round},
        repeats=rounds,
        warmup=1,
        clock=time.process_time,
    )
    for ours, theirs in zip(run.state.vectors.x, bare.x, strict=True):
        assert torch.equal(ours, theirs), "the final parameters differ"
    return seconds


def ratio(name: str, model: str, clients: list[ClientData], cohort: int) -> float:
    both: dict[str, list[float]] = {"simulate": [], "bare": []}
    for _ in range(COPIES[model]):  # fresh ones, since luck with memory differs between them
        for side, seconds in side_by_side(name, model, clients, cohort).items():
            both[side] += seconds
    means = {side: sum(seconds) / len(seconds) for side, seconds in both.items()}
    print(
        f"{name:8} {model:12} CPU seconds per round: simulate {means['simulate']:.3f},"
        f" bare {means['bare']:.3f}; final parameters bit-equal",
        flush=True,
    )
    found = measure.paired(both["simulate"], both["bare"])
    print(f"{name:8} {model:12} over the bare loop {found:.3f}", flush=True)
    return found


def main() -> None:
    parser = measure.parser(__doc__.splitlines()[0])
    parser.add_argument("--cohort", type=int, default=10, help="clients in a round (10)")
    parser.add_argument(
        "--models", nargs="+", choices=MODELS, default=list(MODELS), help="else all"
    )
    options = parser.parse_args()
    torch.set_num_threads(1)
    keep_memory()
    print(measure.machine())
    clients = generated_clients()
    figures = {
        f"{name} {model}": ratio(name, model, clients, options.cohort)
        for name, model in CASES
        if model in options.models
    }
    measure.finish(options, figures, goal=GOAL, what="CPU time over a bare loop, median of pairs")


if __name__ == "__main__":
    main()
