"""Masks on real nodes: the bits of plain runs in process, with two nodes killed within a round.

Warm SuperNodes over TLS with keys; a private run of `scaffold` without masks, and the same under
masks.  In its last round two nodes are killed after they have given their shares, while they train.
The figure is the seconds that a round takes more, of rounds in which nobody is lost.

Run: python benchmarks/masks_deployment.py --check
"""

import json
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

import fedlada
import measure
from fedlada.algorithms import Vector
from fedlada.engines import InProcess, ServerState, federate
from fedlada.flower.loopback import Deployment
from fedlada.protocol.messages import Failure, Reply, Task
from fedlada.protocol.seeds import seed_of

APP = Path(__file__).parent / "apps" / "masked"
sys.path.insert(0, str(APP))
from masked.task import ALGORITHM, LOST, PRIVACY, client_data, model, train  # noqa: E402

BITS, SECONDS = "runs that ended in other bits", "seconds of a round more"
GOAL = {BITS: 0, SECONDS: 2.0}


class Without(InProcess):
    """Clients in process, of which some are lost in one round."""

    round = -1

    def exchange(self, task: Task, cohort: Sequence[int]) -> Iterator[Reply | Failure]:
        gone = LOST if task.round == self.round else ()
        yield from (Failure(client=client, reason="killed") for client in gone)
        yield from super().exchange(task, [client for client in cohort if client not in gone])


def in_process(nodes: int, rounds: int, *, lost_in: int) -> ServerState:
    plan = fedlada.Plan(algorithm=ALGORITHM, rounds=rounds, cohort="all", privacy=PRIVACY)
    torch.manual_seed(seed_of(plan.seed, "model"))
    own = model()
    state = ServerState.new(plan.algorithm, Vector(p.detach().clone() for p in own.parameters()))
    engine = Without(plan.algorithm, own, [client_data(i) for i in range(nodes)], train)
    engine.round = lost_in
    list(federate(plan, engine, state))
    return state


def deployed(work: Path, nodes: int, rounds: int) -> None:
    config = {"nodes": nodes, "rounds": rounds, "directory": str(work)}
    with Deployment(work / "flower", nodes=nodes) as engine:
        run = engine.begin(APP, config=config)
        for client in LOST:
            while not (work / f"hanging-{client}").exists():
                assert run.running(), run.output()
                time.sleep(0.1)
        for client in LOST:
            engine.kill_node(client)
        run.wait(timeout=1200, show=lambda line: print(line) if "round" in line else None)


def main() -> None:
    torch.set_num_threads(1)
    parser = measure.parser(__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    print(measure.machine())
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary)
        deployed(work, options.nodes, options.rounds)
        runs = {"plain": -1, "masked": options.rounds - 1}
        other = 0
        for name, lost_in in runs.items():
            found = torch.load(work / f"{name}.pt", weights_only=True)
            state = in_process(options.nodes, options.rounds, lost_in=lost_in)
            other += not all(v.equal(Vector(found[key])) for key, v in state.vectors.items())
        ends = {name: json.loads((work / f"{name}.json").read_text()) for name in runs}
    # The first round imports torch, and the last under masks waits for those that were killed.
    quiet = {name: (each[-2] - each[0]) / (len(each) - 2) for name, each in ends.items()}
    print(", ".join(f"{name}: {seconds:.1f} s a round" for name, seconds in quiet.items()))
    figures = {BITS: other, SECONDS: quiet["masked"] - quiet["plain"]}
    measure.finish(options, figures, goal=GOAL, what=f"masks on {options.nodes} nodes")


if __name__ == "__main__":
    main()
