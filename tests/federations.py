"""Tiny federations whose mathematics is known, in float64."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.optim import Optimizer

from fedlada import Algorithm, Plan, RoundRecord
from fedlada.algorithms import (
    CORRECTIONS,
    LOCAL_RULES,
    SERVER_RULES,
    Vector,
    Vectors,
    compose,
)
from fedlada.client.store import NEVER, Store
from fedlada.engines import InProcess, MemoryStore, ServerState, federate

KINDS = (
    "fedavg",  # nothing but x and delta
    "fedcm",  # sent down
    "fedlion",  # a momentum that all clients share
    "fedlada",  # a second moment that is sent up and never falls
    "localadam",  # one that may fall
    "scaffold",  # kept by clients, and summed up by the server
    "feddyn",  # the sum of the deltas themselves
    "fedadam",  # kept by the server
    "fedadamw",  # one number per row, and one per tensor
    "diloco",  # one number per tensor, kept by clients
    "fednova",  # deltas in units of the learning rate
    "fedsam",  # two gradients for a step
)
"""One algorithm per kind of declaration: engines, checkpoints and models see no other difference.
`algorithms/test_contract.py` holds this list to what all algorithms declare, and all of them to the
contract."""

compositions = st.builds(
    compose,
    local=st.sampled_from(sorted(LOCAL_RULES)),
    corrections=st.lists(
        st.sampled_from(sorted(CORRECTIONS)),
        unique_by=lambda name: name.partition("-")[0],  # both kinds of amending have g_a
    ),
    server=st.sampled_from(sorted(SERVER_RULES)),
)
"""Any chain of parts."""


class Point(nn.Module):
    """A model that is nothing but a point in space, in two tensors of unlike shape."""

    def __init__(self, dimension: int = 6, *, at: float = 0.0) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.full((dimension - 2,), at, dtype=torch.float64))
        self.b = nn.Parameter(torch.full((2, 1), at, dtype=torch.float64))

    def flat(self) -> Tensor:
        return torch.cat([self.w, self.b.flatten()])


@dataclass(frozen=True)
class Quadratic:
    """½ Σ h (y - b)², the loss of one client."""

    h: Tensor
    b: Tensor
    examples: int = 1

    def __len__(self) -> int:
        return self.examples

    def __call__(self, model: Point) -> Tensor:
        return 0.5 * (self.h * (model.flat() - self.b) ** 2).sum()


def quadratics(clients: int, *, dimension: int = 6, seed: int = 1) -> list[Quadratic]:
    """Clients that disagree about curvature, optimum and number of examples."""
    generator = torch.Generator().manual_seed(seed)

    def draw() -> Tensor:
        return torch.rand(dimension, generator=generator, dtype=torch.float64)

    return [Quadratic(0.2 + draw(), 4 * draw() - 2, examples=1 + i % 3) for i in range(clients)]


def optimum(clients: Sequence[Quadratic]) -> Tensor:
    """Where the sum of all clients' losses is least."""
    return sum(q.h * q.b for q in clients) / sum(q.h for q in clients)


def local_steps(
    k: int, *, noise: float = 0.0, see: Callable[[Tensor], None] | None = None
) -> Callable[[Point, Quadratic, Optimizer], dict[str, float]]:
    """A training loop of k gradient steps, each gradient shown to ``see``."""

    def train(model: Point, data: Quadratic, optimizer: Optimizer) -> dict[str, float]:
        for _ in range(k):
            tilt = noise * torch.randn(6, dtype=torch.float64)

            def gradient(tilt: Tensor = tilt) -> Tensor:
                optimizer.zero_grad()
                loss = data(model) + tilt @ model.flat()
                loss.backward()
                if see is not None:
                    see(torch.cat([p.grad.flatten() for p in model.parameters()]))
                return loss

            loss = optimizer.step(gradient)
        return {"loss": float(loss.detach())}

    return train


@dataclass
class Federation:
    """A federation that can be stepped, looked into and compared."""

    algorithm: Algorithm
    model: nn.Module
    data: Sequence
    train: Callable
    cohort: int = 0
    lr_decay: float = 1.0
    seed: int = 3
    weighting: str = "uniform"

    def __post_init__(self) -> None:
        x = Vector(p.detach().clone() for p in self.model.parameters())
        self.store = MemoryStore()
        self.state = ServerState.new(self.algorithm, x)
        self.engine = InProcess(self.algorithm, self.model, self.data, self.train, store=self.store)

    def plan(self, **settings) -> Plan:
        """The federation's plan, with other settings where given."""
        usual = {
            "algorithm": self.algorithm,
            "cohort": self.cohort or len(self.data),
            "seed": self.seed,
            "lr_decay": self.lr_decay,
            "weighting": self.weighting,
        }
        if len(self.algorithm.sums) > 1:
            usual["guard"] = None  # which limits what a client adds to one sum
        return Plan(**usual | settings)

    def run(self, rounds: int, **settings) -> list[RoundRecord]:
        plan = self.plan(rounds=self.state.round + rounds, **settings)
        return list(federate(plan, self.engine, self.state))

    def kept(self, client: int) -> Vectors:
        """What the client keeps after its last accepted reply."""
        return kept(self.store, self.state, client)

    @property
    def vectors(self) -> Vectors:
        return self.state.vectors

    @property
    def x(self) -> Tensor:
        return flat(self.vectors.x)


def kept(store: Store, state: ServerState, client: int) -> Vectors:
    """What a client keeps after its last accepted reply."""
    return store.load(client, (state.run, state.last_accepted.get(client, NEVER)))


def flat(vector: Vector) -> Tensor:
    """All of a vector's elements in one tensor."""
    return torch.cat([t.flatten() for t in vector])


def same_bits(a: Vectors, b: Vectors) -> bool:
    """Whether all vectors agree to the bit: 0 is not -0, and NaN is itself."""
    return set(a) == set(b) and all(a[name].equal(b[name]) for name in a)
