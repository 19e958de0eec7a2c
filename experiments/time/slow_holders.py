"""The slow clients are those that hold the digits 8 and 9: which rule still learns these two?

    python experiments/time/slow_holders.py 0 1 2

writes results/slow_holders.json for these seeds.  The clients are sorted by their share of 8 and 9,
and the speeds (log-normal, sigma 1) are dealt out in this order, so the client with the largest
share is the slowest.  Accuracies are means over the last ten evaluations, one after every 20
replies, of 500 replies.
"""

from __future__ import annotations

import json
import math
import random
import sys
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import nn

import fedlada
from fedlada.data import STATISTICS, Augment, Clients, load, partition
from fedlada.engines import Devices
from fedlada.engines.devices import Device

RULES = {
    "wait for 20": {"cohort": 20, "rounds": 25},
    "the first 20 of 26": {"cohort": 26, "close_after": 20, "rounds": 25},
    "5 of 20 under way": {"cohort": 20, "close_after": 5, "staleness": 20, "rounds": 100},
    'the same, aging = "none"': {
        **{"cohort": 20, "close_after": 5, "staleness": 20, "rounds": 100},
        "aging": "none",
    },
}
HELD, EVALUATIONS = 8, 10
"""The slow clients hold the digits from this one on."""
prepare = Augment(*STATISTICS["digits"], crop=0)


def main() -> None:
    """Write the rows of the seeds that are given."""
    torch.set_num_threads(1)
    rows = [row for seed in map(int, sys.argv[1:]) for row in rows_of(seed)]
    file = Path(__file__).parent / "results" / "slow_holders.json"
    file.write_text("[\n" + ",\n".join(map(json.dumps, rows)) + "\n]\n")


def rows_of(seed: int) -> Iterator[dict[str, object]]:
    """Yield a row for each rule: all rules have the same clients, devices and first model."""
    train, test = load("digits", split="train"), load("digits", split="test")
    held = partition(train.labels, "client-prior", clients=100, concentration=0.1, seed=seed)
    clients, chance = Clients(train, held), random.Random(seed)
    shares = [float((clients[c].labels >= HELD).float().mean()) for c in range(len(clients))]
    steps = sorted(0.1 * math.exp(chance.gauss(0, 1)) for _ in shares)
    order = sorted(range(len(clients)), key=lambda client: (shares[client], client))
    table = tuple(Device(c, step, 20.0, 5.0) for c, step in zip(order, steps, strict=True))
    held_out = test.labels >= HELD

    @torch.no_grad()
    def evaluate(model: nn.Module) -> dict[str, float]:
        right = (model(prepare.plain(test.inputs)).argmax(1) == test.labels).float()
        return {"of_all": float(right.mean()), "of_held": float(right[held_out].mean())}

    for rule, settings in RULES.items():
        torch.manual_seed(seed)
        run = fedlada.simulate(
            nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)),
            clients,
            algorithm="fedavg",
            lr=0.3,
            lr_decay=1.0,
            seed=seed,
            train=fedlada.LocalTraining(steps=10, batch_size=10, prepare=prepare),
            evaluate=evaluate,
            evaluate_every=settings["rounds"] // 25,
            devices=Devices(table=table, latency=0.1),
            quiet=True,
            **settings,
        )
        run.run()
        ends = [record.metrics for record in run.records if record.metrics][-EVALUATIONS:]
        row = {key: round(sum(m[key] for m in ends) / len(ends), 4) for key in ends[0]}
        yield {"rule": rule, "seed": seed, "seconds": run.records[-1].time, **row}


if __name__ == "__main__":
    main()
