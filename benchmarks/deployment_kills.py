"""SIGKILLs of the ServerApp of a real deployment, each followed by a `flwr run` that goes on.

Three SuperNodes over TLS with keys; `scaffold`, whose clients keep vectors, and `fedlada` in turn.
The moments are drawn from the seed: so many rounds after a start, and any part of a round more.
The app writes the hash of every model that it computes, before it saves the round; beside the
checkpoints that are there after a kill these lines tell whether a saved round was lost or computed
again.  At the end server and clients must have the bits of an undisturbed run in process.

Run: python benchmarks/deployment_kills.py --check
"""

import random
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import torch

import measure
from fedlada import Checkpoints
from fedlada.flower.loopback import Deployment, Run

APP = Path(__file__).parent / "apps" / "resume"
sys.path.insert(0, str(APP))
from resume.undisturbed import Undisturbed, differences, undisturbed  # noqa: E402

ALGORITHMS = ("scaffold", "fedlada")
CLIENTS, COHORT = 3, 2
ROUND = 10.0
"""Seconds that a round takes, more or less; a start takes two."""


@dataclass
class Evidence:
    """What the records of one run say about its kills."""

    expected: Undisturbed
    lost: int = 0
    """Rounds that were computed and not there after a kill, beyond the one in flight."""
    twice: int = 0
    """Rounds that were saved and computed again."""
    other: int = 0
    """Computed models that the undisturbed run never had."""
    _seen: int = field(default=0, init=False)
    _saved: int = field(default=0, init=False)

    def look(self, directory: Path) -> int:
        """Look at the records after a kill, or at the end: how many rounds are saved?"""
        path = directory / "computed"
        lines = path.read_text().split() if path.exists() else []
        names = {name: round for round, name in enumerate(self.expected.names, start=1)}
        rounds = [names[line] for line in lines[self._seen :] if line in names]
        self.other += len(lines) - self._seen - len(rounds)
        # One after the other, from the first that was not saved.
        self.twice += sum(round <= self._saved for round in rounds) + len(rounds) - len(set(rounds))
        found = Checkpoints(directory).latest()
        saved = 0 if found is None else found.state.round
        self.lost += max(0, max(rounds, default=0) - saved - 1, self._saved - saved)
        self._seen, self._saved = len(lines), saved
        return saved


def saved(directory: Path) -> int:
    return max(Checkpoints(directory).rounds(), default=0)


def await_rounds(engine: Deployment, run: Run, directory: Path, round: int) -> float:
    """Wait until so many rounds are saved; seconds since the ServerApp was there."""
    began = None
    while began is None or saved(directory) < round:
        if not run.running():
            raise RuntimeError(f"the run ended before it was killed: {run.output()}")
        if began is None and engine.server_apps():
            began = time.monotonic()
        time.sleep(0.05)
    return time.monotonic() - began


def disturbed(
    engine: Deployment, name: str, work: Path, *, kills: int, rounds: int, dice: random.Random
) -> Evidence:
    """One run, killed so often and then left to its end."""
    directory = work / "server" / name
    config = {
        "algorithms": name,
        "rounds": rounds,
        "cohort": COHORT,
        "nodes": CLIENTS,
        "directory": str(directory.parent),
    }
    evidence = Evidence(undisturbed(name, clients=CLIENTS, cohort=COHORT, rounds=rounds))
    done = 0
    for kill in range(1, kills + 1):
        more = dice.choice([0, 1])
        after = dice.uniform(0, ROUND if more else 3 * ROUND)
        run = engine.begin(APP, config=config)
        waited = await_rounds(engine, run, directory, done + more)
        time.sleep(after)
        engine.kill_server_app()
        run.leave()
        before, done = done, evidence.look(directory)
        print(
            f"{name}: kill {kill} of {kills}, {waited + after:.1f} s after the start at round"
            f" {before}; round {done} of {rounds} is saved",
            flush=True,
        )
    engine.run(APP, config=config, timeout=1200, show=shown(name))
    evidence.look(directory)
    return evidence


def shown(name: str):
    return lambda line: print(f"{name}: {line}", flush=True) if "round" in line else None


def main() -> None:
    torch.set_num_threads(1)
    parser = measure.parser(__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=10, help="of both algorithms together")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    print(measure.machine())
    dice, differ = random.Random(options.seed), 0
    found: list[Evidence] = []
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary)
        nodes = [{"state-directory": str(work / "states")}] * CLIENTS
        with Deployment(work / "flower", nodes=CLIENTS, node_configs=nodes) as engine:
            for i, name in enumerate(ALGORITHMS):
                kills = (options.kills + i) // len(ALGORITHMS)
                evidence = disturbed(
                    engine, name, work, kills=kills, rounds=3 * kills // 2 + 2, dice=dice
                )
                other = list(
                    differences(work / "server" / name, work / "states", evidence.expected)
                )
                differ += bool(other or evidence.other)
                found.append(evidence)
                print(f"{name}: {'; '.join(other) or 'the same bits'}", flush=True)
    figures = {
        "runs that ended in other bits": differ,
        "rounds lost beyond the one in flight": sum(e.lost for e in found),
        "rounds counted twice": sum(e.twice for e in found),
    }
    what = f"{options.kills} SIGKILLs in {len(ALGORITHMS)} deployed runs"
    measure.finish(options, figures, goal=0, what=what)


if __name__ == "__main__":
    main()
