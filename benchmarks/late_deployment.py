"""Rounds that wait for nobody on eight real nodes, replayed in this process to the same bits.

SuperNodes over TLS with keys; each task sleeps between 0 and 20 seconds before it trains.  Five
nodes train at any time, and a round ends with two replies.  One node is killed and comes back.
The records of the run are then replayed here, and server and clients must have the same bits:
`scaffold`, whose clients keep vectors.

Run: python benchmarks/late_deployment.py --check
"""

import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import torch

import measure
from deployment_kills import APP, await_rounds, saved, shown
from fedlada import Checkpoints, Plan
from fedlada.flower.loopback import Deployment

sys.path.insert(0, str(APP))
from resume.undisturbed import differences, replayed

NAME, NODES, DELAY = "scaffold", 8, 20.0
PLAN = {"algorithm": NAME, "cohort": 5, "close_after": 2, "staleness": 6, "deadline": 90.0}
GONE, KILLED, BACK = 2, 3, 6
"""A node, the round after which it is killed, and that after which it is started again."""


def deployed(work: Path, rounds: int) -> None:
    """Run it to its end."""
    plan = {key.replace("_", "-"): value for key, value in PLAN.items() if key != "algorithm"}
    config = {"algorithms": NAME, "rounds": rounds, "nodes": NODES, "delay": DELAY, **plan}
    states = [{"state-directory": str(work / "states")}] * NODES
    with Deployment(work / "flower", nodes=NODES, node_configs=states) as engine:
        run = engine.begin(APP, config={**config, "directory": str(work / "server")})
        directory = work / "server" / NAME
        await_rounds(engine, run, directory, KILLED)
        engine.kill_node(GONE)
        while saved(directory) < BACK:
            time.sleep(0.1)
        engine.start_node(GONE)
        run.wait(timeout=1200, show=shown(NAME))


def main() -> None:
    torch.set_num_threads(1)
    parser = measure.parser(__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=20)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary)
        deployed(work, options.rounds)
        records = list(Checkpoints(work / "server" / NAME).records())
        again = replayed(Plan(rounds=options.rounds, **PLAN), records, clients=NODES)
        other = list(differences(work / "server" / NAME, work / "states", again))
        hashes = (work / "server" / NAME / "computed").read_text().split()
    print("; ".join(other) or "the same bits")
    members = Counter(member for record in records for member in record.members)
    answers = [round_of for client, round_of in members if client == GONE]
    oldest = max(record.oldest or 0 for record in records)
    failures = sum((Counter(record.failures) for record in records), Counter())
    print(f"replies {members.total()}, oldest {oldest}, failures {dict(failures)}")
    print(f"node {GONE} answered the tasks of rounds {sorted(answers)}")
    figures = {
        "rounds that ended in other bits": sum(
            one != two for one, two in zip(hashes, again.names, strict=True)
        ),
        "differences at the end": len(other),
        "replies counted twice": sum(count > 1 for count in members.values()),
    }
    what = f"{members.total()} replies of {NODES} nodes, the oldest {oldest} rounds late"
    measure.finish(options, figures, goal=0, what=what)


if __name__ == "__main__":
    main()
