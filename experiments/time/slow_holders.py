"""The slow clients are those that hold the classes 8 and 9: which rule still learns these two?

    python experiments/time/slow_holders.py digits 0 1 2
    python experiments/time/slow_holders.py lenet 0 1 2

writes results/slow_holders_NAME.json for these seeds: small images of digits, or CIFAR-10 with
LeNet.  The clients are sorted by their share of 8 and 9, and the speeds (log-normal, sigma 1) are
dealt out in this order, so the client with the largest share is the slowest.  Accuracies are means
over the last ten of 25 evaluations.
"""

from __future__ import annotations

import json
import math
import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

import fedlada
from fedlada.data import STATISTICS, Augment, Clients, load, partition
from fedlada.engines import Devices
from fedlada.engines.devices import Device
from fedlada.models import LeNet

HELD, EVALUATIONS, LAST = 8, 25, 10
"""The slow clients hold the classes from this one on."""


def perceptron() -> nn.Module:
    """Return the network of the digits."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


class Problem(NamedTuple):
    """What is learned, and by how many clients at a time."""

    dataset: str
    network: Callable[[], nn.Module]
    lr: float
    clients: int
    asked: int
    more: int
    few: int
    rounds: int
    train: dict[str, int]

    def rules(self) -> dict[str, dict[str, Any]]:
        """Return the settings of each rule: all of them use the same number of replies."""
        few = {"cohort": self.asked, "close_after": self.few, "staleness": 20}
        few["rounds"] = self.rounds * self.asked // self.few
        more = {"cohort": self.more, "close_after": self.asked, "rounds": self.rounds}
        return {
            f"wait for {self.asked}": {"cohort": self.asked, "rounds": self.rounds},
            f"the first {self.asked} of {self.more}": more,
            f"{self.few} of {self.asked} under way": few,
            'the same, aging = "none"': {**few, "aging": "none"},
        }


PROBLEMS = {
    "digits": Problem(
        "digits", perceptron, 0.3, 100, 20, 26, 5, 25, {"steps": 10, "batch_size": 10}
    ),
    "lenet": Problem("cifar10", LeNet, 0.1, 50, 12, 16, 3, 50, {"steps": 20, "batch_size": 20}),
}


def main() -> None:
    """Write the rows of the problem and the seeds that are given."""
    torch.set_num_threads(1)
    name, *seeds = sys.argv[1:]
    rows = [row for seed in map(int, seeds) for row in rows_of(PROBLEMS[name], seed)]
    file = Path(__file__).parent / "results" / f"slow_holders_{name}.json"
    file.write_text("[\n" + ",\n".join(map(json.dumps, rows)) + "\n]\n")


def rows_of(problem: Problem, seed: int) -> Iterator[dict[str, object]]:
    """Yield a row for each rule: all rules have the same clients, devices and first model."""
    train, test = (load(problem.dataset, split=split) for split in ("train", "test"))
    held = partition(
        train.labels, "client-prior", clients=problem.clients, concentration=0.1, seed=seed
    )
    clients, chance = Clients(train, held), random.Random(seed)
    shares = [float((clients[c].labels >= HELD).float().mean()) for c in range(len(clients))]
    steps = sorted(0.1 * math.exp(chance.gauss(0, 1)) for _ in shares)
    order = sorted(range(len(clients)), key=lambda client: (shares[client], client))
    table = tuple(Device(c, step, 20.0, 5.0) for c, step in zip(order, steps, strict=True))
    held_out = test.labels >= HELD
    prepare = Augment(*STATISTICS[problem.dataset], crop=0)

    @torch.no_grad()
    def evaluate(model: nn.Module) -> dict[str, float]:
        inputs = prepare.plain(test.inputs).split(500)
        right = (torch.cat([model(part).argmax(1) for part in inputs]) == test.labels).float()
        return {"of_all": float(right.mean()), "of_held": float(right[held_out].mean())}

    for rule, settings in problem.rules().items():
        torch.manual_seed(seed)
        run = fedlada.simulate(
            problem.network(),
            clients,
            algorithm="fedavg",
            lr=problem.lr,
            lr_decay=1.0,
            seed=seed,
            train=fedlada.LocalTraining(**problem.train, prepare=prepare),
            evaluate=evaluate,
            evaluate_every=settings["rounds"] // EVALUATIONS,
            devices=Devices(table=table, latency=0.1),
            quiet=True,
            **settings,
        )
        run.run()
        ends = [record.metrics for record in run.records if record.metrics][-LAST:]
        row = {key: round(sum(m[key] for m in ends) / len(ends), 4) for key in ends[0]}
        yield {"rule": rule, "seed": seed, "seconds": run.records[-1].time, **row}


if __name__ == "__main__":
    main()
