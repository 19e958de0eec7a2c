"""SIGKILL at random moments of short runs, each resumed: the end is that of the undisturbed run.

A run (generated data, five of twelve clients per round, a checkpoint per round; in half of the
runs a round ends with two replies, and late ones count later) is a process that is killed at a
random moment, started again, killed again, and so on until it ends by itself. Compared with the
same run left alone: the server's vectors (x; v and g_a, or c, or h) and what every client keeps,
bit for bit, and the rounds on record, each exactly once.

Run: python benchmarks/kills.py --check
"""

import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path

import torch
from torch import nn

import measure
from fedlada import Checkpoints, LocalTraining, simulate
from fedlada.atomic import write
from fedlada.data import ClientData
from fedlada.engines import DiskStore
from fedlada.server import FixedSize

ROUNDS, CLIENTS = 12, 12
ALGORITHMS = ("fedlada", "scaffold", "feddyn", "fedadam")
LATE = {"close_after": 2, "staleness": 4, "devices": {"drop_out": 0.1}}
"""Settings of a run whose rounds wait for nobody; its name ends in ``late``."""


def clients() -> list[ClientData]:
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(CLIENTS, 60, 16, generator=generator)
    return [ClientData(x, (x[:, :4] + i / CLIENTS).argmax(1)) for i, x in enumerate(inputs)]


def train(directory: Path, name: str, every: int) -> None:
    """What a user would write: the same call starts a run and goes on with it."""
    torch.manual_seed(0)
    run = simulate(
        nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)),
        clients(),
        algorithm=name.removesuffix(" late"),
        rounds=ROUNDS,
        train=LocalTraining(steps=8, batch_size=10),
        cohort=FixedSize(5),
        checkpoints=Checkpoints(directory, every=every),
        **(LATE if name.endswith(" late") else {}),
    )
    log = directory / "rounds.txt"
    done = run.resumed.round if run.resumed else 0
    rounds = [int(line) for line in log.read_text().split()] if log.exists() else []
    rounds = [number for number in rounds if number <= done]
    if done and done not in rounds:  # killed between the checkpoint and this file
        rounds.append(done)
    write(log, "".join(f"{number}\n" for number in rounds).encode())
    for record in run:
        with log.open("a") as file:
            file.write(f"{record.round}\n")


def start(directory: Path, name: str, every: int) -> int:
    """The run in a process of its own, forked: importing torch takes longer than the run."""
    child = os.fork()
    if child:
        return child
    try:
        train(directory, name, every)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def ended(child: int, within: float) -> int | None:
    """The exit status if the process ends in time; else it is killed."""
    deadline = time.monotonic() + within
    while time.monotonic() < deadline:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            return status
        time.sleep(0.001)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


def final(directory: Path) -> dict:
    """All bits a run ends with, and the rounds on record."""
    checkpoint = Checkpoints(directory).latest()
    state = checkpoint.state
    kept = {}
    if (directory / "clients").exists():
        store = DiskStore(directory / "clients")
        for client, last in state.last_accepted.items():
            version = store.load(client, (state.run, last))
            kept[client] = {name: [t.tolist() for t in v] for name, v in version.items()}
    return {
        "vectors": {name: [t.tolist() for t in v] for name, v in state.vectors.items()},
        "kept": kept,
        "last": state.last_accepted,
        "history": state.history,
        "time": state.time,
        "flights": sorted(state.flights.items()),
        "members": [record.members for record in Checkpoints(directory).records()],
        "rounds": [int(line) for line in (directory / "rounds.txt").read_text().split()],
    }


def disturbed(directory: Path, name: str, every: int, *, length: float, dice) -> tuple[int, int]:
    """Kill and resume until the run ends; how often, and how many committed rounds were lost."""
    kills = lost = 0
    while True:
        status = ended(start(directory, name, every), dice.uniform(0, length))
        if status is not None:
            if status:
                raise RuntimeError(f"a resumed run of {name} failed: see above")
            return kills, lost
        kills += 1
        log = directory / "rounds.txt"
        seen = [int(line) for line in log.read_text().split()] if log.exists() else []
        saved = max(Checkpoints(directory).rounds(), default=0)
        lost += max(0, max(seen, default=0) - saved - (every - 1))


def main() -> None:
    torch.set_num_threads(1)
    parser = measure.parser(__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=200, help="how many at least")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    dice, work = random.Random(options.seed), Path(tempfile.mkdtemp())
    kills = runs = differ = lost = 0
    references, lengths = {}, {}
    try:
        while kills < options.kills:
            name, every = ALGORITHMS[runs % len(ALGORITHMS)], 1 + runs // 8 % 3
            name += " late" if runs // 4 % 2 else ""
            if (name, every) not in references:
                place = work / f"R-{name}-{every}"
                began = time.monotonic()
                assert ended(start(place, name, every), 300) == 0
                lengths[name, every] = time.monotonic() - began
                references[name, every] = final(place)
                assert references[name, every]["rounds"] == list(range(1, ROUNDS + 1))
            place = work / str(runs)
            more, gone = disturbed(place, name, every, length=lengths[name, every], dice=dice)
            end, wanted = final(place), references[name, every]
            same = end == wanted
            other = [key for key in wanted if end[key] != wanted[key]]
            kills, lost, differ, runs = kills + more, lost + gone, differ + (not same), runs + 1
            print(
                f"run {runs} ({name}, checkpoint every {every}): {more} kills,"
                f" {'the same bits' if same else f'OTHER {other}'}; {kills}/{options.kills} kills",
                flush=True,
            )
            shutil.rmtree(place)
    finally:
        shutil.rmtree(work)
    print(json.dumps({"seed": options.seed, "kills": kills, "runs": runs}))
    figures = {"runs that ended in other bits or rounds": differ, "rounds lost": lost}
    goal = dict.fromkeys(figures, 0)
    measure.finish(options, figures, goal=goal, what=f"{kills} SIGKILLs in {runs} runs")


if __name__ == "__main__":
    main()
    sys.exit()
