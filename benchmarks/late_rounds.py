"""Deployed rounds that wait for nobody, replayed in process from their records to the same bits.

Eight SuperNodes over TLS with keys; client i sleeps i times 20/7 seconds before it trains.  A round
ends with two replies, and others may be up to ten rounds late.  One node is killed in the middle
and started again.  `scaffold`, whose clients keep vectors, and `fedlada` in turn.  Afterwards this
process trains what the records name, on its own, and compares the model of every round, the
server's vectors and what every client keeps.

Run: python benchmarks/late_rounds.py --check
"""

import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import torch

import measure
from fedlada import Checkpoints
from fedlada.flower.loopback import Deployment

APP = Path(__file__).parent / "apps" / "resume"
sys.path.insert(0, str(APP))
from resume.undisturbed import differences, replayed  # noqa: E402

CLIENTS, KILLED = 8, 3
PLAN = {"cohort": 6, "close_after": 2, "staleness": 10}


def run(engine: Deployment, name: str, work: Path, rounds: int) -> None:
    """One run; a node is killed after a third of it, and is back after another third."""
    directory = work / "server" / name
    plan = {key.replace("_", "-"): value for key, value in PLAN.items()}
    config = {"algorithms": name, "nodes": CLIENTS, "directory": str(directory.parent)}
    config |= {"slower": 20 / (CLIENTS - 1), "deadline": 120.0, "rounds": rounds, **plan}
    began, killed, back = engine.begin(APP, config=config), False, False
    while began.running():
        saved = max(Checkpoints(directory).rounds(), default=0)
        if not killed and saved >= rounds // 3:
            engine.kill_node(KILLED)
            killed = True
            print(f"{name}: node {KILLED} is killed after round {saved}", flush=True)
        elif killed and not back and saved >= 2 * rounds // 3:
            engine.start_node(KILLED, timeout=180)
            back = True
            print(f"{name}: node {KILLED} is back after round {saved}", flush=True)
        time.sleep(0.2)
    began.wait()


def main() -> None:
    torch.set_num_threads(1)
    parser = measure.parser(__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--algorithms", nargs="+", default=["scaffold", "fedlada"])
    options = parser.parse_args()
    print(measure.machine())
    differ = twice = 0
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary)
        nodes = [{"state-directory": str(work / "states")}] * CLIENTS
        with Deployment(work / "flower", nodes=CLIENTS, node_configs=nodes) as engine:
            for name in options.algorithms:
                run(engine, name, work, options.rounds)
                saved = work / "server" / name
                expected = replayed(name, saved, clients=CLIENTS, rounds=options.rounds, **PLAN)
                other = list(differences(saved, work / "states", expected))
                other += ["models"] * ((saved / "computed").read_text().split() != expected.names)
                records = Checkpoints(saved).records()
                members = Counter(member for record in records for member in record.members)
                failures = sum((Counter(record.failures) for record in records), Counter())
                differ += bool(other)
                twice += sum(count > 1 for count in members.values())
                oldest = max(record.oldest or 0 for record in records)
                print(
                    f"{name}: {members.total()} replies up to {oldest} rounds late, failures"
                    f" {dict(failures)}; {'; '.join(other) or 'the same bits'}",
                    flush=True,
                )
    figures = {"runs that ended in other bits": differ, "replies counted twice": twice}
    what = f"{len(options.algorithms)} deployed runs of {options.rounds} rounds, {CLIENTS} nodes"
    measure.finish(options, figures, goal=0, what=what)


if __name__ == "__main__":
    main()
