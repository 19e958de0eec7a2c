"""CPU time of a round whose small clients are trained at once, against a bare PyTorch loop.

The digits: 100 of 200 clients a round, each of 200 images, 20 steps of ten images of a perceptron
with 2,410 parameters; whole rounds of ``simulate`` with the guard on.  The bare loop is FedAvg's,
or FedLADA's, client by client, as in ``overhead.py``; the other algorithms, which do more, are
compared with FedAvg's.  The text: 20 of 40 clients, 10 steps of four windows of 32 bytes of a small
decoder.  ResNet-18-GN loses on a CPU, where batched convolutions are slow, and LeNet asks for
channels_last, which ``torch.func.vmap`` has not: there the figure is what ``at_once="auto"`` takes
once it has chosen.  All contenders take turns, round by round, in one process on one thread.

Run: python benchmarks/stacked.py --check
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn

import measure
from fedlada import LocalTraining, simulate
from fedlada.data import ClientData, load, normalise
from fedlada.data.digits import STATISTICS
from fedlada.models import Decoder, LeNet, ResNet18
from fedlada.processes import keep_memory
from fedlada.server import FixedSize
from overhead import Bare

ALGORITHMS = ("fedavg", "fedcm", "fedlada", "scaffold", "sharedmuon")
BARE, ALONE, AUTO = 0.15, 0.1, 1.05
"""Goals: of the time of a bare loop, of one by one, and of one by one where ``auto`` chooses."""
TEXT = 0.6
TRIES = 4
"""Rounds in which ``auto`` tries both ways."""


@dataclass(frozen=True)
class Problem:
    """A federation, and what its clients do in a round."""

    model: Callable[[], nn.Module]
    clients: Sequence[ClientData]
    cohort: int
    steps: int
    batch: int
    repeats: int

    def rounds(self, algorithm: str, at_once: int | str) -> Iterator[object]:
        torch.manual_seed(0)
        return iter(
            simulate(
                self.model(),
                self.clients,
                algorithm=algorithm,
                rounds=self.repeats + TRIES,
                cohort=FixedSize(self.cohort),
                train=LocalTraining(steps=self.steps, batch_size=self.batch),
                at_once=at_once,
                quiet=True,
            )
        )

    def bare(self, algorithm: str) -> Callable[[], object]:
        torch.manual_seed(0)
        loop = Bare(
            *(algorithm, self.model(), self.clients, self.cohort),
            steps=self.steps,
            batch=self.batch,
        )
        return loop.round

    def seconds(
        self, algorithm: str, ways: Sequence[int | str], *, bare: str | None = None
    ) -> dict[int | str, list[float]]:
        """CPU seconds of each round in each way; ``bare`` is the algorithm of a bare loop."""
        rounds = {way: self.rounds(algorithm, way) for way in ways}
        contenders = {way: each.__next__ for way, each in rounds.items()}
        return measure.alternate(
            contenders | ({} if bare is None else {"bare": self.bare(bare)}),
            repeats=self.repeats,
            warmup=TRIES if "auto" in ways else 1,
            clock=time.process_time,
        )


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


def digits(clients: int, examples: int) -> list[ClientData]:
    """Clients that each have some of the digits, drawn with replacement."""
    whole, generator = load("digits", split="train"), torch.Generator().manual_seed(0)
    inputs = normalise(whole.inputs, *STATISTICS)
    drawn = torch.randint(len(inputs), (clients, examples), generator=generator)
    return [ClientData(inputs[rows], whole.labels[rows]) for rows in drawn]


def windows(clients: int, examples: int) -> list[ClientData]:
    """Windows of 32 of 128 symbols at random."""
    generator = torch.Generator().manual_seed(0)
    texts = torch.randint(128, (clients, examples, 33), generator=generator)
    return [ClientData(text[:, :-1], text[:, 1:]) for text in texts]


def images(clients: int, examples: int) -> list[ClientData]:
    generator = torch.Generator().manual_seed(0)
    return [
        ClientData(
            torch.randn(examples, 3, 32, 32, generator=generator),
            torch.randint(10, (examples,), generator=generator),
        )
        for _ in range(clients)
    ]


def shown(name: str, seconds: dict[int | str, list[float]]) -> None:
    medians = {way: sorted(each)[len(each) // 2] for way, each in seconds.items()}
    text = ", ".join(f"{way} {median:.3f}" for way, median in medians.items())
    print(f"{name}: CPU seconds per round by at_once: {text}", flush=True)


def digits_of(name: str) -> tuple[dict[str, float], dict[str, float]]:
    """Digits at once, over a bare loop and over one by one: figures and goals."""
    problem = Problem(perceptron, digits(200, 200), 100, 20, 10, repeats=6)
    seconds = problem.seconds(name, (100, 1), bare="fedlada" if name == "fedlada" else "fedavg")
    shown(f"digits {name}", seconds)
    over_bare, over_alone = f"{name} over a bare loop", f"{name} over one by one"
    figures = {
        over_bare: measure.paired(seconds[100], seconds["bare"]),
        over_alone: measure.paired(seconds[100], seconds[1]),
    }
    return figures, {over_bare: BARE, over_alone: ALONE}


def text() -> tuple[dict[str, float], dict[str, float]]:
    """A small decoder at once, over a bare loop."""
    problem = Problem(lambda: Decoder(128, context=32), windows(40, 40), 20, 10, 4, repeats=6)
    seconds = problem.seconds("fedavg", (20, 1), bare="fedavg")
    shown("text fedavg", seconds)
    name = "text over a bare loop"
    return {name: measure.paired(seconds[20], seconds["bare"])}, {name: TEXT}


def images_of(
    name: str, problem: Problem, ways: Sequence[int | str]
) -> tuple[dict[str, float], dict[str, float]]:
    """Convolutions at once, and what ``auto`` makes of them, over one by one."""
    seconds = problem.seconds("fedavg", (*ways, 1))
    shown(f"{name} fedavg", seconds)
    names = {
        way: f"{name} {'auto' if way == 'auto' else 'at once'} over one by one" for way in ways
    }
    figures = {names[way]: measure.paired(seconds[way], seconds[1]) for way in ways}
    return figures, {names["auto"]: AUTO}


CASES = {
    **{name: partial(digits_of, name) for name in ALGORITHMS},
    "text": text,
    "lenet": lambda: images_of(
        "LeNet", Problem(LeNet, images(10, 100), 10, 5, 20, repeats=8), ("auto",)
    ),
    "resnet18": lambda: images_of(
        "ResNet-18-GN", Problem(ResNet18, images(4, 20), 2, 2, 5, repeats=6), (2, "auto")
    ),
}


def main() -> None:
    parser = measure.parser(__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=CASES, default=list(CASES), help="else all")
    options = parser.parse_args()
    torch.set_num_threads(1)
    keep_memory()
    print(measure.machine())
    figures: dict[str, float] = {}
    goals: dict[str, float] = {}
    for name in options.only:
        found, wanted = CASES[name]()
        figures, goals = figures | found, goals | wanted
    measure.finish(options, figures, goal=goals, what="CPU time of a round, median of pairs")


if __name__ == "__main__":
    main()
