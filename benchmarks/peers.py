"""Seconds per round of FedAvg: this library, Flower's Ray simulation, pfl, fedjax and bare loops.

The same work for all: LeNet on CIFAR-10's shapes, 10 of 20 clients a round, 10 steps of batch 50
each, plain SGD, one thread per process.  With ``--problem digits`` it is a round of
``million.py``: 1,000 of 10,000 clients, 5 steps of ten digits, a small perceptron, and this library
trains the clients at once; ``COHORT=50`` in the environment makes rounds of 50.  Each runs in a
program of its own, in turns; the first round, in which everything is loaded, does not count.  pfl
and fedjax are looked for in the Pythons that ``--pfl`` and ``--fedjax`` name, for example after

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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy

import measure
from fedlada import LocalTraining, algorithm, simulate
from fedlada.data import ClientData
from fedlada.models import LeNet
from fedlada.processes import keep_memory
from fedlada.server import FixedSize
from million import Many, perceptron
from overhead import BATCH, CLIENTS, STEPS, Bare, generated_clients

HERE = Path(__file__).parent
TURNS = 3
LR = algorithm("fedavg", lr=0.1).settings()["lr"]


@dataclass(frozen=True)
class Problem:
    """What all do, and how many rounds of it count."""

    model: Callable[[], torch.nn.Module]
    data: Callable[[], Sequence[ClientData]]
    clients: int
    cohort: int
    steps: int
    batch: int
    rounds: int
    at_once: int = 1


PROBLEMS = {
    "lenet": Problem(LeNet, generated_clients, CLIENTS, 10, STEPS, BATCH, rounds=4),
    "digits": Problem(perceptron, Many, 10_000, 1_000, 5, 10, rounds=2, at_once=1_000),
}
# Flower's actors import this module, too, and know no options.
PROBLEM = PROBLEMS[os.environ.get("PROBLEM", "lenet")]
COHORT, ROUNDS = int(os.environ.get("COHORT", PROBLEM.cohort)), PROBLEM.rounds
clients = functools.cache(PROBLEM.data)


def ours(workers: int) -> Iterator[object]:
    yield from simulate(
        PROBLEM.model(),
        clients(),
        algorithm=algorithm("fedavg", lr=LR),
        rounds=ROUNDS + 1,
        train=LocalTraining(steps=PROBLEM.steps, batch_size=PROBLEM.batch),
        cohort=FixedSize(COHORT),
        workers=workers,
        at_once=PROBLEM.at_once,
    )


def bare(processes: int) -> Iterator[object]:
    if processes == 1:
        loop = Bare(
            *("fedavg", PROBLEM.model(), clients(), COHORT),
            steps=PROBLEM.steps,
            batch=PROBLEM.batch,
        )
    else:
        from parallel import BareProcesses

        loop = BareProcesses("fedavg", PROBLEM.model(), clients())
    for _ in range(ROUNDS + 1):
        yield loop.round()
    if processes > 1:
        loop.close()


def steps(model: torch.nn.Module, data, optimizer) -> None:
    """A client's round as a plain script has it."""
    model.train()
    for rows in torch.randperm(len(data)).split(PROBLEM.batch)[: PROBLEM.steps]:
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
        model = peers.PROBLEM.model()
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
            fraction_train=COHORT / PROBLEM.clients,
            fraction_evaluate=0.0,
            min_available_nodes=PROBLEM.clients,
        )
        strategy.start(
            grid=grid,
            initial_arrays=ArrayRecord(PROBLEM.model().state_dict()),
            num_rounds=ROUNDS + 1,
            evaluate_fn=lambda *_: ends.append(now()),
        )

    run_simulation(
        app,
        flower_client(),
        num_supernodes=PROBLEM.clients,
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

    class Learner(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = PROBLEM.model()

        def forward(self, inputs):
            return self.inner(inputs)

        def loss(self, inputs, labels, eval=False):
            return cross_entropy(self(inputs), labels)

        def metrics(self, inputs, labels, eval=False):
            return {}

    ends = []

    class Clock(TrainingProcessCallback):
        def after_central_iteration(self, *_, **__):
            ends.append(now())
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
    sampler = get_user_sampler("random", list(range(PROBLEM.clients)))
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
            local_num_steps=PROBLEM.steps,
            local_learning_rate=LR,
            local_batch_size=PROBLEM.batch,
        ),
        NNEvalHyperParams(local_batch_size=None),
        callbacks=[Clock()],
    )
    yield from ends


def _empty_metrics():
    from pfl.metrics import Metrics

    return Metrics()


def fedjax() -> Iterator[object]:
    """fedjax's FedAvg of the digits; jax compiles the clients' loop in the first round."""
    import fedjax
    import jax
    import jax.numpy as jnp

    model = PROBLEM.model()
    layers = [layer for layer in model if isinstance(layer, torch.nn.Linear)]
    params = [
        {
            "w": jnp.asarray(layer.weight.detach().numpy().T),
            "b": jnp.asarray(layer.bias.detach().numpy()),
        }
        for layer in layers
    ]

    def loss(params, batch, _):
        hidden = batch["x"].reshape(len(batch["x"]), -1)
        for layer in params[:-1]:
            hidden = jax.nn.relu(hidden @ layer["w"] + layer["b"])
        logits = hidden @ params[-1]["w"] + params[-1]["b"]
        found = jnp.take_along_axis(jax.nn.log_softmax(logits), batch["y"][:, None], axis=1)
        return -jnp.mean(found)

    jax.tree_map = jax.tree_util.tree_map  # fedjax 0.0.17 needs it, and newer jax has it no more
    averaging = fedjax.algorithms.fed_avg.federated_averaging(
        jax.grad(loss),
        fedjax.optimizers.sgd(LR),
        fedjax.optimizers.sgd(1.0),
        fedjax.ShuffleRepeatBatchHParams(batch_size=PROBLEM.batch, num_steps=PROBLEM.steps),
    )
    state = averaging.init(params)
    for t in range(ROUNDS + 1):
        keys, cohort = jax.random.split(jax.random.PRNGKey(t), COHORT), []
        for key, i in zip(keys, FixedSize(COHORT).cohort(0, t, PROBLEM.clients), strict=True):
            data = {"x": clients()[i].inputs.numpy(), "y": clients()[i].labels.numpy()}
            cohort.append((str(i).encode(), fedjax.ClientDataset(data), key))
        state, _ = averaging.apply(state, cohort)
        yield jax.block_until_ready(state.params)


PEERS: dict[str, tuple[int, Callable[[], Iterator[object]]]] = {
    "fedlada, 1 process": (1, functools.partial(ours, 1)),
    "fedlada, 2 workers": (2, functools.partial(ours, 2)),
    "Flower on Ray, 2 actors": (2, flower),
    "pfl, 1 process": (1, pfl),
    "pfl, 2 processes": (2, pfl),
    "fedjax, 1 process": (1, fedjax),
    "bare loop, 1 process": (1, functools.partial(bare, 1)),
    "bare loop, 2 processes": (2, functools.partial(bare, 2)),
}


NOT_OF = {
    "lenet": ["fedjax, 1 process"],  # whose digits are written for jax
    "digits": ["pfl, 2 processes", "bare loop, 2 processes"],
}
"""The peers that are left out for a problem."""


def cpu_of_descendants() -> float:
    """CPU seconds so far of this process and of those that it and its children have started."""
    parents, own = {}, {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            # What follows the name, which is in parentheses: the parent is field 4, and utime,
            # stime and those of children that have ended are fields 14 to 17.
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:  # it has ended meanwhile
            continue
        parents[int(stat.parent.name)] = int(fields[1])
        own[int(stat.parent.name)] = sum(map(int, fields[11:15]))
    ours = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in ours} - ours:
        ours |= more
    return sum(own.get(pid, 0) for pid in ours) / os.sysconf("SC_CLK_TCK")


CLOCKS = {"wall": time.perf_counter, "cpu": cpu_of_descendants}
now = CLOCKS[os.environ.get("CLOCK", "wall")]


def one(name: str) -> None:
    """Print the seconds of each round but the first; peers may yield the times of their ends."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    keep_memory()
    ends = []
    for end in PEERS[name][1]():
        ends.append(end if isinstance(end, float) else now())
    if int(os.environ.get("RANK", "0")) == 0:
        print("\nseconds " + json.dumps([b - a for a, b in itertools.pairwise(ends)]))
    sys.stdout.flush()
    os._exit(0)  # peers leave threads behind that would be waited for


def seconds_of(name: str, problem: str, clock: str, pythons: dict[str, str]) -> list[float] | str:
    """The seconds per round of a peer in a program of its own, or its error."""
    python = pythons.get(name.partition(",")[0], sys.executable)
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
    names = {
        "PYTHONPATH": os.pathsep.join(paths),
        "OMP_NUM_THREADS": "1",
        "PROBLEM": problem,
        "CLOCK": clock,
    }
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
    parser.add_argument("--fedjax", default=sys.executable, help="a Python that has fedjax")
    parser.add_argument("--problem", choices=PROBLEMS, default="lenet")
    parser.add_argument(
        "--clock", choices=CLOCKS, default="wall", help="cpu where other programs run"
    )
    parser.add_argument("--only", nargs="+", choices=PEERS, help="else all of the problem")
    parser.add_argument("--one", choices=PEERS, help="only this one, in this process")
    parser.add_argument("--turns", type=int, default=TURNS)
    options = parser.parse_args()
    if options.one:
        one(options.one)
    print(measure.machine())
    peers = options.only or [name for name in PEERS if name not in NOT_OF[options.problem]]
    pythons = {"pfl": options.pfl, "fedjax": options.fedjax}
    seconds: dict[str, list[float]] = {name: [] for name in peers}
    errors: dict[str, str] = {}
    for _ in range(options.turns):
        for name in peers:
            found = errors.get(name) or seconds_of(name, options.problem, options.clock, pythons)
            if isinstance(found, str):
                errors[name] = found
            else:
                seconds[name] += found
    medians = {name: statistics.median(s) for name, s in seconds.items() if name not in errors}
    print(f"| | processes | {options.clock} seconds per round |\n|---|---|---|")
    for name in sorted(medians, key=lambda name: medians[name]):
        print(f"| {name} | {PEERS[name][0]} | {medians[name]:.3f} |")
    for name, error in errors.items():
        print(f"{name}: {error}")
    figures = {}
    for name in [name for name in medians if name.startswith("fedlada")]:
        others = [
            median
            for other, median in medians.items()
            if PEERS[other][0] == PEERS[name][0] and not other.startswith(("fedlada", "bare"))
        ]
        if others:
            figures[f"{name}, over the fastest peer"] = medians[name] / min(others)
    if not figures:
        return  # with --only, there may be nobody to compare with
    measure.finish(options, figures, goal=1.0, what="seconds per round over the fastest peer")


if __name__ == "__main__":
    main()
