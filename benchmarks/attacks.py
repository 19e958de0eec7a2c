"""What hostile replies cost `fedlada` on CIFAR-10 with LeNet, with the guard and without.

Every case is the run R (100 clients, Dirichlet 0.6, ten per round, 50 steps) with replies changed
on their way: by one client in one round, or by the same ten clients whenever they are sampled.
Compared are the mean test accuracy of the last rounds and the median of sqrt(v) at the end.
Cases are checkpointed: a stopped run goes on.

Run: python benchmarks/attacks.py --check
"""

import json
import warnings
from pathlib import Path

import torch

import measure
from fedlada import (
    Checkpoints,
    Evaluation,
    Guard,
    InProcess,
    LocalTraining,
    Plan,
    ServerState,
    algorithm,
    federate,
)
from fedlada.algorithms import Vector
from fedlada.data import STATISTICS, Augment, Clients, load, partition
from fedlada.engines.faulty import Faulty
from fedlada.models import LeNet
from fedlada.server.model import Server

ONCE, LAST = 3, 10
COLLUDING = range(0, 100, 10)

CASES = {
    "R": None,
    "huge v, once": ("huge v", "once"),
    "huge v, 10 % collude": ("huge v", "collude"),
    "zero v, 10 % collude": ("zero v", "collude"),
    "delta x 1000, once": ("delta x 1000", "once"),
    "delta x 1000, 10 % collude": ("delta x 1000", "collude"),
    "delta x -1000, 10 % collude": ("delta x -1000", "collude"),
    "delta x 10, 10 % collude": ("delta x 10", "collude"),
}
UNGUARDED = {
    "huge v, once, no guard": ("huge v", "once"),
    "delta x 1000, once, no guard": ("delta x 1000", "once"),
}


def plan(case):
    """Which client lies in which round."""
    if case is None:
        return lambda round, client: None
    fault, how = case
    struck = []

    def once(round, client):
        if round == ONCE and (not struck or struck == [client]):
            struck[:] = [client]
            return fault
        return None

    return once if how == "once" else lambda round, client: fault if client in COLLUDING else None


def run(name, case, *, guard, rounds, directory):
    """Test accuracy round by round, and the median of sqrt(v) at the end."""
    train, test = load("cifar10", split="train"), load("cifar10", split="test")
    split = partition(train.labels, "client-prior", clients=100, concentration=0.6)
    prepare = Augment(*STATISTICS["cifar10"])
    chosen = algorithm("fedlada", lr=0.01)
    torch.manual_seed(0)
    model = LeNet()
    place = Checkpoints(directory / name.replace(" ", "-").replace("%", "percent"))
    attacked = Plan.of(algorithm=chosen, rounds=rounds, guard=guard)
    server = Server(attacked, model, checkpoints=place, config={"case": name})
    curve_file = place.directory / "curve.jsonl"
    curve = {}
    if curve_file.exists():
        lines = [json.loads(line) for line in curve_file.read_text().splitlines()]
        curve = {line["round"]: line for line in lines if line["round"] <= server.state.round}
    engine = InProcess(
        chosen,
        model,
        Clients(train, split),
        LocalTraining(steps=50, batch_size=50, prepare=prepare),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the guard says at the end that it stepped in
        for record in federate(
            attacked,
            Faulty(engine, plan(case)),
            server.state,
            evaluate=server.evaluation(Evaluation(data=test, prepare=prepare.plain)),
            save=server.save,
        ):
            accuracy = 100 * record.metrics["test_accuracy"]
            row = {"round": record.round, "accuracy": accuracy, "limited": record.limited}
            row["rejected"] = record.rejected
            curve[record.round] = row
            with curve_file.open("a") as file:
                file.write(json.dumps(row) + "\n")
            print(f"{name}: round {record.round}/{rounds}, {accuracy:.1f} %", flush=True)
    late = [curve[r]["accuracy"] for r in range(rounds - LAST + 1, rounds + 1)]
    return sum(late) / LAST, median_root(server.state)


def median_root(state: ServerState) -> float:
    v: Vector = state.vectors.v
    return float(torch.cat([t.flatten() for t in v]).median().sqrt())


def main() -> None:
    torch.set_num_threads(1)
    parser = measure.parser(__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--directory", type=Path, default=Path("runs/attacks"))
    parser.add_argument("--only", metavar="WORD", help="run the cases with this in their name")
    options = parser.parse_args()
    results = {}
    for name, case in (CASES | UNGUARDED).items():
        if options.only and options.only not in name:
            continue
        guard = None if name in UNGUARDED else Guard()
        results[name] = run(
            name, case, guard=guard, rounds=options.rounds, directory=options.directory
        )
        accuracy, root = results[name]
        print(f"== {name}: accuracy {accuracy:.2f} %, median sqrt(v) {root:.3g}", flush=True)
    if options.only:
        return
    accuracy, root = results["R"]
    figures = {f"{n}: points lost": accuracy - a for n, (a, _) in results.items() if n != "R"}
    figures |= {
        f"{name}: sqrt(v) over R's": results[name][1] / root for name in results if "huge v" in name
    }
    goal = {
        "huge v, once: points lost": 0.5,
        "huge v, once: sqrt(v) over R's": 2.0,
        "huge v, 10 % collude: sqrt(v) over R's": 2.0,
        "zero v, 10 % collude: points lost": 0.5,
        "delta x 1000, once: points lost": 1.0,
        "delta x 1000, 10 % collude: points lost": 3.0,
        "delta x -1000, 10 % collude: points lost": 3.0,
    }
    print(f"R: accuracy {accuracy:.2f} %, median sqrt(v) {root:.3g}")
    measure.finish(options, figures, goal=goal, what="attacks")


if __name__ == "__main__":
    main()
