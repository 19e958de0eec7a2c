"""A simulated round on an accelerator against a bare PyTorch loop there, and against the CPU.

Both loops train FedAvg on LeNet, with the data in the memory of the host: 10 clients, 10 steps of
batch 50 each.  They take turns, round by round.  The same run on the CPU shows how much faster the
device is, and how far the weights differ after the first round, relative to the largest.  Later the
difference grows by itself: training amplifies the rounding.

Run: python benchmarks/accelerator.py --check
"""

import torch
from torch import nn
from torch.nn.functional import cross_entropy

import measure
from fedlada import LocalTraining, Simulation, algorithm, devices, simulate
from fedlada.data import ClientData
from fedlada.models import LeNet
from fedlada.protocol.seeds import seed_of

CLIENTS, STEPS, BATCH = 10, 10, 50
GOALS = {"over a bare loop": 1.1, "difference": 1e-4}


def found(name: str) -> torch.device:
    """The device of this name; XLA is none that torch itself knows."""
    if name != "xla":
        return devices.chosen(name)
    import torch_xla
    from torch_xla.experimental import eager_mode

    eager_mode(True)  # one operation at a time, as on other devices
    return torch_xla.device()


def generated_clients() -> list[ClientData]:
    generator = torch.Generator().manual_seed(0)
    return [
        ClientData(
            torch.randn(500, 3, 32, 32, generator=generator),
            torch.randint(10, (500,), generator=generator),
        )
        for _ in range(CLIENTS)
    ]


def started(device: torch.device, clients: list[ClientData], rounds: int) -> Simulation:
    torch.manual_seed(0)
    return simulate(
        LeNet(10).to(device),
        clients,
        algorithm="fedavg",
        rounds=rounds,
        train=LocalTraining(steps=STEPS, batch_size=BATCH),
        quiet=True,
    )


class Bare:
    """FedAvg as a plain script has it."""

    def __init__(self, model: nn.Module, clients: list[ClientData]) -> None:
        self.settings = algorithm("fedavg").settings()
        self.model, self.clients, self.t = model, clients, 0
        self.params = list(model.parameters())

    def round(self) -> float:
        """Train every client once, and wait for the device."""
        x = [p.detach().clone() for p in self.params]
        total = [torch.zeros_like(t, dtype=torch.float64) for t in x]
        losses = torch.zeros((), device=x[0].device)
        for i, data in enumerate(self.clients):
            with torch.no_grad():
                torch._foreach_copy_(self.params, x)
            losses += self.train(data, seed_of(0, "client", self.t, i))
            with torch.no_grad():
                torch._foreach_add_(total, [t - p for t, p in zip(x, self.params, strict=True)])
        with torch.no_grad():
            for p, t, delta in zip(self.params, x, total, strict=True):
                p.copy_(t - (delta / len(self.clients)).float())
        self.t += 1
        return float(losses)

    def train(self, data: ClientData, seed: int) -> torch.Tensor:
        lr, decay = self.settings["lr"] * 0.998**self.t, self.settings["weight_decay"]
        device = self.params[0].device
        fused = devices.has_fused(device)
        sgd = torch.optim.SGD(self.params, lr=lr, weight_decay=decay, fused=fused)
        order = torch.randperm(len(data), generator=torch.Generator().manual_seed(seed))
        losses = torch.zeros((), device=device)
        for rows in order.split(BATCH)[:STEPS]:
            sgd.zero_grad()
            inputs, labels = data.inputs[rows].to(device), data.labels[rows].to(device)
            loss = cross_entropy(self.model(inputs), labels)
            loss.backward()
            losses += loss.detach()
            sgd.step()
        return losses


def difference(one: Simulation, other: Simulation) -> float:
    """The largest difference of two models' weights, over the largest weight."""
    pairs = list(zip(one.state.vectors.x, other.state.vectors.x, strict=True))
    largest = max(float(u.abs().max()) for _, u in pairs)
    return max(float((t.cpu() - u.cpu()).abs().max()) for t, u in pairs) / largest


def main() -> None:
    parser = measure.parser(__doc__.splitlines()[0])
    parser.add_argument("--device", default="auto", help="auto, cuda, cuda:1, mps, xla or cpu")
    parser.add_argument("--rounds", type=int, default=10, help="rounds to measure (10)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    device = found(options.device)
    print(f"{measure.machine()}, device {device}")
    if device.type == "cuda":  # which else rounds what it multiplies
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    clients, rounds = generated_clients(), options.rounds + 4  # one to compare, three to warm up
    there, here = (started(d, clients, rounds) for d in (device, devices.CPU))
    torch.manual_seed(0)
    bare, on_device, on_cpu = Bare(LeNet(10).to(device), clients), iter(there), iter(here)
    next(on_device), next(on_cpu)
    differs = difference(there, here)
    seconds = measure.alternate(
        {"device": lambda: next(on_device), "bare": bare.round, "CPU": lambda: next(on_cpu)},
        repeats=options.rounds,
    )
    for name, each in seconds.items():
        print(f"{name:8} {sorted(each)[len(each) // 2]:8.3f} seconds per round")
    figures = {
        "over a bare loop": measure.paired(seconds["device"], seconds["bare"]),
        "difference": differs,
        "times as fast as the CPU": measure.paired(seconds["CPU"], seconds["device"]),
    }
    what = f"a round of fedavg on LeNet on {device.type}"
    measure.finish(options, figures, goal=GOALS, what=what)


if __name__ == "__main__":
    main()
