"""1,000 rounds in which clients drop out, break, repeat themselves and answer old questions.

Which client does what in which round follows from the seed, and every round is a line of the log;
now and then the server is thrown away and resumed from its checkpoint.  At the end the accepted
replies are replayed alone, without faults and without a guard, from that log: the vectors must be
the same, bit for bit.  That holds where the guard limits no honest reply: `fedlada` is run with the
paper's settings, because at its own lr v of two honest replies in these rounds is cut.

Run: python benchmarks/soak.py --check
Replay a log: python benchmarks/soak.py --replay LOG
"""

import json
import shutil
import tempfile
import time
import warnings
from collections import Counter
from pathlib import Path

import torch
from torch import nn

import measure
from fedlada import Checkpoints, LocalTraining, Plan, algorithm
from fedlada.data import ClientData
from fedlada.engines import DiskStore, Failure, InProcess, federate
from fedlada.protocol.seeds import seed_of
from fedlada.redteam.faulty import REJECTED, Faulty, at_random
from fedlada.server.server import Server

CLIENTS, COHORT, MINIMUM = 40, 10, 3
RATES = {"drop out": 0.15, "twice": 0.05, "two unlike": 0.05, "stale": 0.05}
RATES |= {"next to no lr_sum": 0.02, "1e9 steps": 0.02, "extreme numbers": 0.02}
# These three are rejected by what the others say.
RATES |= dict.fromkeys((name for name in REJECTED if name != "stale"), 0.2 / (len(REJECTED) - 1))
RESUMED = 0.01
"""How often a round ends with the server thrown away."""


def clients() -> list[ClientData]:
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(CLIENTS, 60, 16, generator=generator)
    return [ClientData(x, (x[:, :4] + i / CLIENTS).argmax(1)) for i, x in enumerate(inputs)]


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))


def engine(chosen, own, store):
    train = LocalTraining(steps=3, batch_size=10)
    return InProcess(chosen, own, clients(), train, store=store)


class Watched:
    """An engine that remembers whose replies were accepted last."""

    def __init__(self, engine):
        self.clients, self.keeps, self.exchange = engine.clients, engine.keeps, engine.exchange
        self._engine, self.accepted = engine, []

    def commit(self, task, clients):
        self.accepted = list(clients)
        self._engine.commit(task, clients)


class Replay:
    """An engine in which the clients on the log reply, and no others."""

    def __init__(self, engine, accepted):
        self.clients, self.keeps, self.commit = engine.clients, engine.keeps, engine.commit
        self._engine, self._accepted = engine, accepted

    def exchange(self, task, cohort):
        there = [client for client in cohort if client in self._accepted[task.round]]
        yield from self._engine.exchange(task, there)
        for client in set(cohort) - set(there):
            yield Failure(client=client, reason="not on the log")


def soak(name, *, rounds, seed, directory, log):
    """A run with faults; its final vectors and what happened, counted."""
    chosen, plan = algorithm(name), at_random(seed=seed, rates=RATES)
    happened, began, done = Counter(), time.monotonic(), 0
    store = DiskStore(directory / "clients")
    while done < rounds:
        own = model()
        checkpoints = Checkpoints(directory)
        settings = {"cohort": COHORT, "seed": seed, "minimum": MINIMUM, "lr_decay": 1.0}
        soaked = Plan(algorithm=chosen, rounds=rounds, **settings)
        server = Server(soaked, own, checkpoints=checkpoints, config={"soak": seed})
        watched = Watched(engine(chosen, own, store))
        for record in federate(
            soaked,
            Faulty(watched, plan),
            server.state,
            save=server.save,
        ):
            done = record.round
            happened.update(record.rejected)
            happened.update(record.failures)
            happened["limited"] += sum(record.limited.values())
            happened["abandoned rounds"] += not record.applied
            faults = {c: plan(done - 1, c) for c in record.cohort if plan(done - 1, c)}
            row = {"algorithm": name, "seed": seed, "round": done, "accepted": watched.accepted}
            log.write(json.dumps(row | {"faults": faults}) + "\n")
            if done % 100 == 0:
                rate = done / (time.monotonic() - began)
                print(f"{name}: round {done}/{rounds}, {rate:.0f} a second", flush=True)
            if seed_of(seed, "resume", done) % 1000 < RESUMED * 1000:
                happened["resumed"] += 1
                break
    return server.state.vectors, happened


def replay(lines):
    """The accepted replies of a log, alone, in a federation without faults or guard."""
    name, seed = lines[0]["algorithm"], lines[0]["seed"]
    chosen, own = algorithm(name), model()
    accepted = {line["round"] - 1: line["accepted"] for line in lines}
    settings = {"cohort": COHORT, "seed": seed, "guard": None, "lr_decay": 1.0}
    plan = Plan(algorithm=chosen, rounds=len(lines), **settings)
    server = Server(plan, own)
    with tempfile.TemporaryDirectory() as directory:
        for _ in federate(
            plan,
            Replay(engine(chosen, own, DiskStore(directory)), accepted),
            server.state,
        ):
            pass
    return server.state.vectors


def main() -> None:
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", message="the guard stepped in")
    parser = measure.parser(__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--log", type=Path, help="keep the log here")
    parser.add_argument("--replay", type=Path, metavar="LOG", help="only replay a log")
    options = parser.parse_args()
    if options.replay:
        lines = [json.loads(line) for line in options.replay.read_text().splitlines()]
        for name in dict.fromkeys(line["algorithm"] for line in lines):
            vectors = replay([line for line in lines if line["algorithm"] == name])
            print(name, {n: f"{v.norm():.9g}" for n, v in vectors.items()})
        return
    figures, work = {}, Path(tempfile.mkdtemp())
    path = options.log or work / "log.jsonl"
    try:
        for name in ("fedlada-paper", "scaffold"):
            with path.open("a") as log:
                vectors, happened = soak(
                    name,
                    rounds=options.rounds,
                    seed=options.seed,
                    directory=work / name,
                    log=log,
                )
            print(name, dict(happened.most_common()), flush=True)
            lines = [json.loads(line) for line in path.read_text().splitlines()]
            again = replay([line for line in lines if line["algorithm"] == name])
            figures[f"{name}: vectors unlike the replay"] = sum(
                not vectors[n].equal(again[n]) for n in vectors
            )
            figures[f"{name}: rounds missing"] = options.rounds - len(
                {line["round"] for line in lines if line["algorithm"] == name}
            )
    finally:
        shutil.rmtree(work)
    measure.finish(
        options, figures, goal=0, what=f"{options.rounds} rounds of soak, {len(RATES)} faults"
    )


if __name__ == "__main__":
    main()
