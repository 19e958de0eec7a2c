"""A million client-rounds on one core: 1,000 rounds of 1,000 of 10,000 clients, trained at once.

Each client has 50 digits, whose labels follow shares of its own, and takes 5 steps of ten of them
with a perceptron of 2,410 parameters; FedAvg with the guard, the model evaluated every 50 rounds.
The run saves checkpoints in ``--directory`` and may be cut into pieces of ``--minutes``; a piece
notes its time and memory there, and the record of every 50th round.  The goals are CPU milliseconds
per client-round and megabytes.

Run: python benchmarks/million.py --check --directory runs/million
"""

from __future__ import annotations

import functools
import json
import resource
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import nn

import measure
from fedlada import Evaluation, LocalTraining, simulate
from fedlada.data import ClientData, load, normalise
from fedlada.data.digits import STATISTICS
from fedlada.processes import keep_memory
from fedlada.server.saving.checkpoint import Checkpoints

CLIENTS, COHORT, ROUNDS, EXAMPLES, STEPS, BATCH, LR = 10_000, 1_000, 1_000, 50, 5, 10, 0.1
EVERY = 50
GOALS = {"rounds left": 0.0, "CPU ms per client-round": 1.0, "peak memory in MB": 1_000.0}


@functools.cache
def digits(split: str) -> ClientData:
    data = load("digits", split=split)
    return ClientData(normalise(data.inputs, *STATISTICS), data.labels)


class Many(Sequence[ClientData]):
    """Clients that are made when they are asked for: they are rows of one set."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        labels = digits("train").labels
        # Shares from a Dirichlet distribution of concentration 1: of each label, by client.
        shares = torch.empty(CLIENTS, 10).exponential_(generator=generator)
        shares = shares[:, labels] / torch.bincount(labels)[labels]
        rows = torch.multinomial(shares, EXAMPLES, replacement=True, generator=generator)
        self._rows = rows.short()

    def __len__(self) -> int:
        return CLIENTS

    def __getitem__(self, client: int) -> ClientData:  # type: ignore[override]
        whole, rows = digits("train"), self._rows[client].long()
        return ClientData(whole.inputs[rows], whole.labels[rows])


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


def piece(directory: Path, minutes: float) -> list[dict]:
    """Run until all rounds are done or the minutes are over; return all pieces so far."""
    began, notes = time.monotonic(), directory / "pieces.jsonl"
    directory.mkdir(parents=True, exist_ok=True)
    run = simulate(
        perceptron,
        Many(),
        algorithm="fedavg",
        lr=LR,
        rounds=ROUNDS,
        cohort=COHORT,
        train=LocalTraining(steps=STEPS, batch_size=BATCH),
        evaluate=Evaluation(data=digits("test")),
        evaluate_every=EVERY,
        checkpoints=Checkpoints(directory / "checkpoints", every=10),
        at_once=COHORT,
    )
    with run:
        for record in run:
            late = time.monotonic() - began > 60 * minutes
            if record.round % 10 == 0 and (late or record.round == ROUNDS):
                note = {
                    "rounds": record.round,
                    "seconds": time.monotonic() - began,
                    "cpu": time.process_time(),
                    "megabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
                }
                with notes.open("a") as file:
                    file.write(json.dumps(note) + "\n")
                if late:
                    break
        rows = [
            {
                "round": record.round,
                "accepted": record.accepted,
                "client_loss": round(record.client_metrics["loss"], 5),
                "drift": record.drift,
                "limited": record.limited,
                **record.metrics,
            }
            for record in run.records
            if record.round % EVERY == 0
        ]
    (directory / "record.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return [json.loads(line) for line in notes.read_text().splitlines()]


def main() -> None:
    parser = measure.parser(__doc__.splitlines()[0])
    parser.add_argument("--directory", type=Path, required=True, help="of the run's checkpoints")
    parser.add_argument("--minutes", type=float, default=1e9, help="then stop; run again to resume")
    options = parser.parse_args()
    torch.set_num_threads(1)
    keep_memory()
    print(measure.machine(), flush=True)
    pieces = piece(options.directory, options.minutes)
    done, cpu = pieces[-1]["rounds"], sum(each["cpu"] for each in pieces)
    print(f"{done} of {ROUNDS} rounds: {cpu / 60:.1f} CPU minutes in {len(pieces)} pieces")
    figures = {
        "rounds left": ROUNDS - done,
        "CPU ms per client-round": 1000 * cpu / (done * COHORT),
        "CPU minutes": cpu / 60,
        "minutes": sum(each["seconds"] for each in pieces) / 60,
        "peak memory in MB": max(each["megabytes"] for each in pieces),
    }
    measure.finish(options, figures, goal=GOALS, what="a million client-rounds")


if __name__ == "__main__":
    main()
