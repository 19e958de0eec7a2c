"""Seconds per round of FedAvg: this library, Flower's Ray simulation, pfl and bare loops.

The same work for all: LeNet on CIFAR-10's shapes, 10 of 20 clients a round, 10 steps of batch 50
each, plain SGD, one thread per process.  Each runs in a program of its own, in turns; the first
round, in which everything is loaded, does not count.  pfl is looked for in the Python that
``--pfl`` names, for example after

    python -m venv /tmp/pfl && /tmp/pfl/bin/pip install torch pfl

and whatever cannot run is listed with its error.  The goal is first place among those with as many
processes, except for the bare loops, which can do nothing else.

Run: python benchmarks/peers.py --check --pfl /tmp/pfl/bin/python
"""

import functools
import itertools
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy

import measure
from fedlada import LocalTraining, algorithm, simulate
from fedlada.models import LeNet
from fedlada.processes import keep_memory
from fedlada.server import FixedSize
from overhead import BATCH, CLIENTS, STEPS, Bare, generated_clients

HERE = Path(__file__).parent
COHORT, ROUNDS, TURNS = 10, 4, 3
LR = algorithm("fedavg", lr=0.1).settings()["lr"]
clients = functools.cache(generated_clients)


def ours(workers: int) -> Iterator[object]:
    yield from simulate(
        LeNet(),
        clients(),
        algorithm=algorithm("fedavg", lr=LR),
        rounds=ROUNDS + 1,
        train=LocalTraining(steps=STEPS, batch_size=BATCH),
        cohort=FixedSize(COHORT),
        workers=workers,
    )


def bare(processes: int) -> Iterator[object]:
    if processes == 1:
        loop = Bare("fedavg", LeNet(), clients(), COHORT)
    else:
        from parallel import BareProcesses

        loop = BareProcesses("fedavg", LeNet(), clients())
    for _ in range(ROUNDS + 1):
        yield loop.round()
    if processes > 1:
        loop.close()


def steps(model: torch.nn.Module, data, optimizer) -> None:
    """A client's round as a plain script has it."""
    model.train()
    for rows in torch.randperm(len(data)).split(BATCH)[:STEPS]:
        optimizer.zero_grad()
        cross_entropy(model(data.inputs[rows]), data.labels[rows]).backward()
        optimizer.step()


def flower_client():
    """A ClientApp for Flower's own FedAvg."""
    from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp

    app = ClientApp()

    @app.train()
    def train(message, context):
        import peers  # so that each actor loads the data once

        torch.set_num_threads(1)
        model = LeNet()
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        data = peers.clients()[int(context.node_config["partition-id"])]
        peers.steps(model, data, torch.optim.SGD(model.parameters(), lr=LR, fused=True))
        metrics = MetricRecord({"num-examples": len(data)})
        content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics})
        return Message(content, reply_to=message)

    return app


def flower() -> Iterator[object]:
    """Flower's FedAvg on Ray with two actors; the whole run, then its rounds' ends."""
    from flwr.app import ArrayRecord
    from flwr.serverapp import ServerApp
    from flwr.serverapp.strategy import FedAvg
    from flwr.simulation import run_simulation

    ends, app = [], ServerApp()

    @app.main()
    def main(grid, context) -> None:
        strategy = FedAvg(
            fraction_train=COHORT / CLIENTS, fraction_evaluate=0.0, min_available_nodes=CLIENTS
        )
        strategy.start(
            grid=grid,
            initial_arrays=ArrayRecord(LeNet().state_dict()),
            num_rounds=ROUNDS + 1,
            evaluate_fn=lambda *_: ends.append(time.perf_counter()),
        )

    run_simulation(
        app,
        flower_client(),
        num_supernodes=CLIENTS,
        backend_config={"client_resources": {"num_cpus": 1}, "init_args": {"num_cpus": 2}},
    )
    yield from ends[1:]  # the first is the evaluation before any round


def pfl() -> Iterator[object]:
    """pfl's FederatedAveraging; under torchrun it shares the cohort among the processes."""
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.callback.base import TrainingProcessCallback
    from pfl.data.dataset import Dataset
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.sampling import get_user_sampler
    from pfl.hyperparam.base import NNEvalHyperParams, NNTrainHyperParams
    from pfl.model.pytorch import PyTorchModel

    class Learner(LeNet):
        def loss(self, inputs, labels, eval=False):
            return cross_entropy(self(inputs), labels)

        def metrics(self, inputs, labels, eval=False):
            return {}

    ends = []

    class Clock(TrainingProcessCallback):
        def after_central_iteration(self, *_, **__):
            ends.append(time.perf_counter())
            return False, _empty_metrics()

    def dataset(user: int) -> Dataset:
        data = clients()[user]
        return Dataset((data.inputs, data.labels), user_id=str(user))

    model = Learner()
    wrapped = PyTorchModel(
        model,
        local_optimizer_create=lambda p, lr: torch.optim.SGD(p, lr=lr, fused=True),
        central_optimizer=torch.optim.SGD(model.parameters(), lr=1.0),
    )
    sampler = get_user_sampler("random", list(range(CLIENTS)))
    data = FederatedDataset(dataset, sampler)
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=ROUNDS + 1,
            evaluation_frequency=10**6,
            train_cohort_size=COHORT,
            val_cohort_size=0,
        ),
        SimulatedBackend(training_data=data, val_data=data),
        wrapped,
        NNTrainHyperParams(
            local_num_epochs=None,
            local_num_steps=STEPS,
            local_learning_rate=LR,
            local_batch_size=BATCH,
        ),
        NNEvalHyperParams(local_batch_size=None),
        callbacks=[Clock()],
    )
    yield from ends


def _empty_metrics():
    from pfl.metrics import Metrics

    return Metrics()


PEERS: dict[str, tuple[int, Callable[[], Iterator[object]]]] = {
    "fedlada, 1 process": (1, functools.partial(ours, 1)),
    "fedlada, 2 workers": (2, functools.partial(ours, 2)),
    "Flower on Ray, 2 actors": (2, flower),
    "pfl, 1 process": (1, pfl),
    "pfl, 2 processes": (2, pfl),
    "bare loop, 1 process": (1, functools.partial(bare, 1)),
    "bare loop, 2 processes": (2, functools.partial(bare, 2)),
}


def one(name: str) -> None:
    """Print the seconds of each round but the first; peers may yield the times of their ends."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    keep_memory()
    ends = []
    for end in PEERS[name][1]():
        ends.append(end if isinstance(end, float) else time.perf_counter())
    if int(os.environ.get("RANK", "0")) == 0:
        print("\nseconds " + json.dumps([b - a for a, b in itertools.pairwise(ends)]))
    sys.stdout.flush()
    os._exit(0)  # peers leave threads behind that would be waited for


def seconds_of(name: str, pfl_python: str) -> list[float] | str:
    """The seconds per round of a peer in a program of its own, or its error."""
    python = pfl_python if name.startswith("pfl") else sys.executable
    words = [python, str(HERE / "peers.py"), "--one", name]
    if name == "pfl, 2 processes":
        words[1:1] = [
            "-m",
            "torch.distributed.run",
            "--nproc-per-node=2",
            "--master-addr=127.0.0.1",
        ]
        words[4:4] = ["--local-addr=127.0.0.1", "--master-port=29517"]
    paths = [str(HERE), str(HERE.parent / "src"), os.environ.get("PYTHONPATH", "")]
    names = {"PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
    try:
        done = subprocess.run(
            words, capture_output=True, text=True, timeout=600, env={**os.environ, **names}
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    lines = [line for line in done.stdout.splitlines() if line.startswith("seconds ")]
    if not lines:
        errors = [line for line in done.stderr.splitlines() if "Error" in line]
        return (errors or done.stderr.splitlines() or ["no output"])[-1].strip()
    found: list[float] = json.loads(lines[-1].removeprefix("seconds "))
    return found


def main() -> None:
    parser = measure.parser(__doc__.splitlines()[0])
    parser.add_argument("--pfl", default=sys.executable, help="a Python that has pfl")
    parser.add_argument("--one", choices=PEERS, help="only this one, in this process")
    parser.add_argument("--turns", type=int, default=TURNS)
    options = parser.parse_args()
    if options.one:
        one(options.one)
    print(measure.machine())
    seconds: dict[str, list[float]] = {name: [] for name in PEERS}
    errors: dict[str, str] = {}
    for _ in range(options.turns):
        for name in PEERS:
            found = seconds_of(name, options.pfl) if name not in errors else errors[name]
            if isinstance(found, str):
                errors[name] = found
            else:
                seconds[name] += found
    medians = {name: statistics.median(s) for name, s in seconds.items() if name not in errors}
    print("| | processes | seconds per round |\n|---|---|---|")
    for name in sorted(medians, key=lambda name: medians[name]):
        print(f"| {name} | {PEERS[name][0]} | {medians[name]:.3f} |")
    for name, error in errors.items():
        print(f"{name}: {error}")
    figures = {}
    for name in ("fedlada, 1 process", "fedlada, 2 workers"):
        others = [
            median
            for other, median in medians.items()
            if PEERS[other][0] == PEERS[name][0] and not other.startswith(("fedlada", "bare"))
        ]
        if others:
            figures[f"{name}, over the fastest peer"] = medians[name] / min(others)
    measure.finish(options, figures, goal=1.0, what="seconds per round over the fastest peer")


if __name__ == "__main__":
    main()
