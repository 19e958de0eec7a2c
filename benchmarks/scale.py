"""Time and memory of a round against the clients registered and sampled, and its checkpoint.

Registered: 100, 10,000 and 1,000,000 clients, ten sampled, SCAFFOLD (whose clients keep a vector,
on disk) on generated data.  Cohort: 100, 1,000 and 10,000 clients with a small network, 40 and 120
with a ResNet-18's vectors and FedLADA; training is faked there (one step on a constant gradient),
vectors are not.  In the first round a server holds the 30 replies that set the guard's limits, so
no cohort here is smaller than that.  Checkpoint: 1,000 and 1,000,000 clients that keep vectors and
have all been accepted.  Each case is a process of its own, so its peak RSS is its own; times are
CPU times.

Run: python benchmarks/scale.py --check
"""

import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

import measure
from fedlada import Checkpoints, LocalTraining, Simulation, simulate
from fedlada.data import ClientData
from fedlada.engines import DiskStore
from fedlada.models import ResNet18
from fedlada.server import FixedSize

GOAL = 1.10
SAVES = 31
REGISTERED, COHORT, RESNET, KEPT = (
    (100, 10_000, 1_000_000),
    (100, 1_000, 10_000),
    (40, 120),
    (1_000, 1_000_000),
)
TURNS = {"registered": 3, "cohort": 2, "resnet": 1, "checkpoint": 3}
"""How often the sizes of a kind take turns; the median of each counts."""


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


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))


def seconds(run: Simulation[ClientData]) -> float:
    """CPU seconds of a round, the median."""
    found, began = [], time.process_time()
    for _ in run:
        found.append(time.process_time() - began)
        began = time.process_time()
    return statistics.median(found)


def registered(clients: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as directory:
        run = simulate(
            perceptron(),
            Generated(clients),
            algorithm="scaffold",
            rounds=40,
            train=LocalTraining(steps=10, batch_size=20),
            cohort=FixedSize(10),
            store=DiskStore(directory),
        )
        return {"seconds": seconds(run)}


def fake(model: nn.Module, data: ClientData, optimizer: torch.optim.Optimizer) -> None:
    for p in model.parameters():
        p.grad = torch.full_like(p, 1e-3)
    optimizer.step()


def cohort(size: int) -> dict[str, float]:
    """A small network; of small cohorts more rounds."""
    rounds = max(2_000 // size, 1)
    run = simulate(
        perceptron(), Generated(10_000), rounds=rounds, train=fake, cohort=FixedSize(size)
    )
    return {"seconds": seconds(run) / size}


def resnet(size: int) -> dict[str, float]:
    run = simulate(ResNet18(10), Generated(1000), rounds=1, train=fake, cohort=FixedSize(size))
    return {"seconds": seconds(run) / size}


def checkpoint(clients: int) -> dict[str, float]:
    """A checkpoint after a round of ten clients, where so many have been accepted before."""
    with tempfile.TemporaryDirectory() as directory:
        run = simulate(
            perceptron(),
            Generated(1000),
            algorithm="scaffold",
            rounds=1,
            train=fake,
            cohort=FixedSize(10),
            checkpoints=Path(directory) / "run",
        )
        (record,) = run.run()
        server, state = run._server, run.state
        state.last_accepted = dict.fromkeys(range(clients), 0)
        state.contributed = dict.fromkeys(range(clients), 1.0)
        place = Checkpoints(Path(directory) / "run")
        place.open()

        def save() -> tuple[float, float]:
            """CPU seconds, and bytes written."""
            before = size(place.directory, "ledger-*")
            state.round += 1
            state.changed.update(range(state.round, state.round + 10))
            began = time.process_time()
            place.save(state, record, config=server._config, names=server._names)
            used = time.process_time() - began
            grown = size(place.directory, "ledger-*") - before
            return used, grown + size(place.directory, f"round-{state.round:08}.*")

        first, whole = save()  # it writes everybody, as it does again when most are outdated
        later = [save() for _ in range(SAVES)]
        began = time.process_time()
        found = place.latest()
        assert found is not None
        assert len(found.state.last_accepted) == clients
        return {
            "seconds": statistics.median(used for used, _ in later),
            "bytes": max(count for _, count in later),
            "first seconds": first,
            "first bytes": whole,
            "load seconds": time.process_time() - began,
        }


def size(directory: Path, pattern: str) -> int:
    return sum(path.stat().st_size for path in directory.glob(pattern))


CASES: dict[str, tuple[Callable[[int], dict[str, float]], tuple[int, ...]]] = {
    "registered": (registered, REGISTERED),
    "cohort": (cohort, COHORT),
    "resnet": (resnet, RESNET),
    "checkpoint": (checkpoint, KEPT),
}


def case(kind: str, clients: int) -> dict[str, float]:
    """Run one case in a process of its own."""
    command = [sys.executable, __file__, "--case", kind, str(clients)]
    began = time.perf_counter()
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    result: dict[str, float] = json.loads(printed.splitlines()[-1])
    per = {"registered": "round", "checkpoint": "save"}.get(kind, "client")
    print(
        f"{kind:10} {clients:9,} clients: {1e3 * result['seconds']:8.2f} ms CPU per {per},"
        f" peak RSS {result['rss']:6.0f} MB  ({time.perf_counter() - began:.0f} s)"
        + "".join(f", {name} {value:,.6g}" for name, value in result.items() if name not in USUAL),
        flush=True,
    )
    return result


USUAL = ("seconds", "rss")
GOALS = {
    "registered": {"seconds": "time", "rss": "RSS"},
    "cohort": {"seconds": "time per client", "rss": "RSS"},
    "resnet": {"rss": "RSS"},
    "checkpoint": {"seconds": "time", "bytes": "bytes"},
}
"""The figures that must not grow."""
Medians = dict[int, dict[str, float]]


def medians(kind: str) -> Medians:
    """The median of every figure by size; the sizes take turns."""
    _, sizes = CASES[kind]
    results: dict[int, list[dict[str, float]]] = {size: [] for size in sizes}
    for _ in range(TURNS[kind]):
        for clients in sizes:
            results[clients].append(case(kind, clients))
    return {
        clients: {key: statistics.median(result[key] for result in found) for key in found[0]}
        for clients, found in results.items()
    }


def ratios(kind: str, found: Medians, keys: dict[str, str]) -> dict[str, float]:
    """Every size over the smallest."""
    least, *larger = found
    return {
        f"{kind} {clients:,} over {least:,}, {name}": found[clients][key] / found[least][key]
        for clients in larger
        for key, name in keys.items()
    }


def main() -> None:
    torch.set_num_threads(1)
    if sys.argv[1:2] == ["--case"]:
        result = CASES[sys.argv[2]][0](int(sys.argv[3]))
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(json.dumps(result | {"rss": peak}))
        return
    parser = measure.parser(__doc__.splitlines()[0])
    parser.add_argument("--kinds", nargs="+", choices=CASES, default=list(CASES), help="else all")
    options = parser.parse_args()
    print(measure.machine())
    figures: dict[str, float] = {}
    others: dict[str, float] = {}
    for kind in options.kinds:
        found = medians(kind)
        figures |= ratios(kind, found, GOALS[kind])
        if kind == "checkpoint":
            largest = found[KEPT[-1]]
            others = {f"checkpoint {KEPT[-1]:,}, {name}": largest[name] for name in largest}
    goals = dict.fromkeys(figures, GOAL)
    measure.finish(options, figures | others, goal=goals, what="ratio, and cost of a checkpoint")


if __name__ == "__main__":
    main()
