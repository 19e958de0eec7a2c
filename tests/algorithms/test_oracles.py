"""Every named algorithm is, to 1e-10, what its source says; ``oracles.py`` has it once more.

The federation is tiny and unequal: seven clients of 6 to 24 examples, three in a round, steps that
differ by client, a rate that decays; a convolution, an embedding, a wide and a tall matrix, biases.
"""

from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import fedlada
import oracles
from fedlada import ALGORITHMS, algorithm

ROUNDS, COHORT, CLIENTS, DECAY = 5, 3, 7, 0.95
CLOSE = 1e-10

SGD = {"lr": 0.2, "weight_decay": 0.02}
ADAM = {"lr": 0.02, "weight_decay": 0.03, "betas": (0.8, 0.95), "eps": 1e-5}
MUON = {"lr": 0.02, "weight_decay": 0.03, "beta": 0.9}
MOMENTS = {"server_betas": (0.8, 0.95), "server_eps": 2e-3, "server_lr": 0.05}
CONTROL = {"lr": 0.2, "weight_decay": 0.0}  # option II is exact without decay
SETTINGS = {
    "fedavg": SGD | {"server_lr": 0.7},
    "fednova": SGD | {"server_lr": 0.7},
    "fedavgm": SGD | {"momentum": 0.8, "server_lr": 0.6},
    "fedacg": SGD | {"momentum": 0.8, "mu": 0.3},
    "fedexp": SGD | {"server_eps": 1e-4},
    "fedadam": SGD | MOMENTS | {"server_v0": 4e-6},
    "fedyogi": SGD | MOMENTS | {"server_v0": 4e-6},
    "fedadagrad": SGD | MOMENTS | {"server_betas": (0.8, 0.0), "server_v0": 4e-6},
    "fedams": SGD | MOMENTS | {"server_eps": 1e-5},
    "fedprox": SGD | {"mu": 0.3},
    "scaffold": CONTROL | {"server_lr": 0.7},
    "scaffold-exp": CONTROL | {"server_eps": 1e-4},
    "feddyn": SGD | {"a": 0.3},
    "fedcm": SGD | {"alpha": 0.2, "server_lr": 0.7},
    "localadam": ADAM,
    "localadamw": ADAM,
    "fedlalr": ADAM,
    "fedada2": ADAM | MOMENTS,
    "fedlion": {"lr": 0.01, "betas": (0.9, 0.8), "weight_decay": 0.1},
    "sharedmuon": MUON,
    "keptmuon": MUON,
    "freshmuon": MUON,
    "fedmuon": MUON | {"alpha": 0.3},
    "fedmuon-corrected": MUON,
    "muloco": MUON | {"server_lr": 0.6, "momentum": 0.8},
    "diloco": ADAM | {"server_lr": 0.6, "momentum": 0.8},
    "fedlada": ADAM | {"alpha": 0.2, "server_lr": 0.7},
    "fedlada-paper": ADAM | {"alpha": 0.2},
    "fedlada-rows": ADAM | {"alpha": 0.2},
    "fedadamw": ADAM | {"alpha": 0.6},
    "fedsam": SGD | {"rho": 0.3},
    "mofedsam": SGD | {"rho": 0.3, "alpha": 0.2},
    "fedgamma": CONTROL | {"rho": 0.3},
    "fedlesam": SGD | {"rho": 0.3},
    "fedlesam-s": CONTROL | {"rho": 0.3},
    "fedlesam-d": SGD | {"rho": 0.3, "a": 0.3},
}
"""No setting has its default, and none makes an ingredient vanish."""


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(1, 3, 3)
        self.embed = nn.Embedding(9, 3)
        self.wide = nn.Linear(15, 5)
        self.tall = nn.Linear(5, 8)

    def forward(self, inputs: Tensor) -> Tensor:
        h = torch.tanh(self.conv(inputs[:, None, :6])).flatten(1)
        h = torch.cat([h, self.embed(inputs[:, 6].long())], 1)
        return self.tall(torch.tanh(self.wide(h)))


@dataclass
class Client:
    inputs: Tensor
    labels: Tensor
    steps: int

    def __len__(self) -> int:
        return len(self.labels)

    def batch(self, k: int) -> tuple[Tensor, Tensor]:
        rows = (torch.arange(4) + 4 * k) % len(self)
        return self.inputs[rows], self.labels[rows]


def model() -> Net:
    torch.manual_seed(0)
    return Net().double()


def clients(steps) -> list[Client]:
    generator = torch.Generator().manual_seed(5)
    made = []
    for i in range(CLIENTS):
        n = 6 + 3 * i
        inputs = torch.randn(n, 7, generator=generator, dtype=torch.float64)
        inputs[:, 6] = torch.randint(0, 9, (n,), generator=generator).double()
        labels = (torch.randint(0, 3, (n,), generator=generator) + i) % 8
        made.append(Client(inputs, labels, steps(i)))
    return made


def train(net, data, optimizer) -> None:
    for k in range(data.steps):
        inputs, labels = data.batch(k)

        def closure(inputs=inputs, labels=labels) -> Tensor:
            optimizer.zero_grad()
            loss = cross_entropy(net(inputs), labels)
            loss.backward()
            return loss

        optimizer.step(closure)


def test_every_name_has_an_oracle():
    assert SETTINGS.keys() == ALGORITHMS.keys()


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("case", ["equal", "unequal"])
@pytest.mark.parametrize("name", SETTINGS)
def test_an_algorithm_is_what_its_source_says(name, case):
    """With equal steps and clients, and with unequal steps and, if allowed, weights by examples."""
    chosen = algorithm(name, **SETTINGS[name])
    data = clients((lambda i: 4) if case == "equal" else (lambda i: 2 + i % 4))
    weighting = "examples" if case == "unequal" and not chosen.sums else "uniform"
    run = fedlada.simulate(
        model(), data, train=train, algorithm=chosen, rounds=ROUNDS, cohort=COHORT, seed=11,
        lr_decay=DECAY, weighting=weighting, guard=None,
    )  # fmt: skip
    ours, cohorts = [], []
    for record in run:
        ours.append([t.clone() for t in run.state.vectors.x])
        cohorts.append(record.cohort)
    problem = oracles.Problem(model(), data, cohorts, DECAY, weighting)
    oracle = getattr(oracles, name.replace("-", "_"))
    theirs = [*oracle(problem, SimpleNamespace(**chosen.settings()))]
    for x, expected in zip(ours, theirs, strict=True):
        for t, e in zip(x, expected, strict=True):
            assert float((t - e).abs().max()) < CLOSE
    moved = max(float((a - b).abs().max()) for a, b in zip(ours[-1], problem.x0, strict=True))
    assert moved > 0.01, "the settings move the model"
