"""Time and memory of a round against the number of clients registered and sampled.

Registered: 1,000,000 clients against 100, ten sampled, SCAFFOLD (whose clients keep a vector, on
disk) on generated data.  Cohort: 1,000 clients against 10 with a ResNet-18's vectors and FedLADA;
training is faked there (one step on a constant gradient), vectors are not.  Each case is a
process of its own, so its peak RSS is its own.

Run: python benchmarks/scale.py --check
"""

import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time

import torch
from torch import nn

import measure
from fedlada import DiskStore, FixedSize, LocalTraining, simulate
from fedlada.data import ClientData
from fedlada.models import ResNet18

GOAL = 1.10


class Generated:
    """So many clients, each made when it is asked for."""

    def __init__(self, clients: int) -> None:
        self.clients = clients

    def __len__(self) -> int:
        return self.clients

    def __getitem__(self, client: int) -> ClientData:
        generator = torch.Generator().manual_seed(client)
        inputs = torch.randn(200, 64, generator=generator)
        return ClientData(inputs, inputs[:, :10].argmax(1))


def registered(clients: int) -> dict[str, float]:
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
    with tempfile.TemporaryDirectory() as directory:
        run = simulate(
            model,
            Generated(clients),
            algorithm="scaffold",
            rounds=60,
            train=LocalTraining(steps=10, batch_size=20),
            sampling=FixedSize(10),
            store=DiskStore(directory),
        )
        return {"seconds": statistics.median(record.seconds for record in run)}


def fake(model: nn.Module, data: ClientData, optimizer: torch.optim.Optimizer) -> None:
    for p in model.parameters():
        p.grad = torch.full_like(p, 1e-3)
    optimizer.step()


def cohort(size: int) -> dict[str, float]:
    run = simulate(ResNet18(10), Generated(1000), rounds=1, train=fake, sampling=FixedSize(size))
    (record,) = run.run()
    return {"seconds": record.seconds / size}


CASES = {"registered": registered, "cohort": cohort}


def case(kind: str, clients: int) -> dict[str, float]:
    """Run one case in a process of its own."""
    command = [sys.executable, __file__, "--case", kind, str(clients)]
    began = time.perf_counter()
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    result: dict[str, float] = json.loads(printed.splitlines()[-1])
    print(
        f"{kind:10} {clients:9,} clients: {1e3 * result['seconds']:8.1f} ms per"
        f" {'round' if kind == 'registered' else 'client'}, peak RSS {result['rss']:6.0f} MB"
        f"  ({time.perf_counter() - began:.0f} s)",
        flush=True,
    )
    return result


def main() -> None:
    torch.set_num_threads(1)
    if sys.argv[1:2] == ["--case"]:
        result = CASES[sys.argv[2]](int(sys.argv[3]))
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(json.dumps(result | {"rss": peak}))
        return
    options = measure.arguments(__doc__.splitlines()[0])
    print(measure.machine())
    few, many = [], []
    for _ in range(5):
        few.append(case("registered", 100))
        many.append(case("registered", 1_000_000))
    small, large = case("cohort", 10), case("cohort", 1000)

    def middle(results: list[dict[str, float]], key: str) -> float:
        return statistics.median(result[key] for result in results)

    figures = {
        "registered 1,000,000 over 100, time": middle(many, "seconds") / middle(few, "seconds"),
        "RSS": middle(many, "rss") / middle(few, "rss"),
        "cohort 1,000 over 10, RSS": large["rss"] / small["rss"],
    }
    measure.finish(options, figures, goal=GOAL, what="ratio")


if __name__ == "__main__":
    main()
