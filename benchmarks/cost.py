"""Predicted time and bytes of a round against measured rounds that did not enter the constants.

Three networks.  Constants are measured as `fedlada cost --measure` does, with one algorithm and
one to three clients; rounds of another algorithm with more clients and more steps are predicted
from them.  Fit and rounds take turns, so that a machine that is slow for a while is slow for both,
and are timed in CPU seconds.  Needs CIFAR-10.

Run: python benchmarks/cost.py --check
"""

import statistics
import time

import torch
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects

import measure
from fedlada.algorithms import Vector, Vectors
from fedlada.experiment.config.reading import experiment
from fedlada.experiment.cost.checking import check
from fedlada.experiment.cost.measuring import fit
from fedlada.experiment.cost.trials import Trial
from fedlada.experiment.cost.workload import workload
from fedlada.experiment.run.memory import keep_memory
from fedlada.experiment.run.problem import build
from fedlada.flower.records import reply_record
from fedlada.models import ResNet18
from fedlada.protocol.messages import Reply

TIME, BYTES = 0.20, 0.02
CASES = (
    # network, data set, batch, fitted by, predicted, its cohort and steps
    ("mlp", "digits", 10, "fedavg", "fedcm", 10, 40),
    ("lenet", "cifar10", 50, "fedavg", "scaffold", 10, 10),
    ("resnet18", "cifar10", 50, "fedavg", "fedlada", 4, 4),
)


def predicted(
    network: str, data: str, batch: int, by: str, name: str, cohort: int, steps: int, seconds: float
) -> dict[str, float]:
    """The relative errors of time and bytes of one case."""
    keys = {
        "data.dataset": data,
        "data.clients": 50,
        "data.partition": "iid",
        "model.name": network,
        "train.batch_size": batch,
        "train.steps": steps,
    }
    fitted, other = (
        experiment(keys | {"algorithm": word}, source="benchmarks/cost.py") for word in (by, name)
    )
    problem = build(fitted)
    trial = Trial.of(other, problem, cohort=cohort, steps=steps)
    constants, (samples,) = fit(
        fitted,
        problem,
        workload(fitted, problem),
        [trial],
        seconds=seconds,
        clock=time.process_time,
    )
    found = check(workload(other, problem), constants, trial, samples)
    print(
        f"{network:9} fitted by {by:8} predicts {name:9} {found.what}:"
        f" {1e3 * found.predicted:8.1f} ms, measured {1e3 * found.measured:8.1f}"
        f" ({found.error:+.1%}); bytes {found.bytes_predicted:,.0f}, measured"
        f" {found.bytes_measured:,.0f} ({found.bytes_error:+.1%})",
        flush=True,
    )
    return {
        f"{network} {name}, time": abs(found.error),
        f"{network} {name}, bytes": abs(found.bytes_error),
    }


def wire() -> float:
    """CPU nanoseconds per byte in which Flower serialises and hashes a vector of a ResNet-18."""
    x = Vector(p.detach() for p in ResNet18(10).parameters())
    found = []
    for _ in range(5):
        reply = Reply(client=0, round=0, vectors=Vectors(delta=x), examples=1, steps=1, lr_sum=0.1)
        began = time.process_time()
        for part in get_all_nested_objects(reply_record(reply)).values():
            part.deflate()
        found.append(time.process_time() - began)
    return 1e9 * statistics.median(found) / x.nbytes()


def main() -> None:
    parser = measure.parser(__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=20, help="of turns for each case (20)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    keep_memory()
    print(measure.machine())
    figures: dict[str, float] = {}
    for case in CASES:
        figures |= predicted(*case, options.seconds)
    goals = {name: TIME if name.endswith("time") else BYTES for name in figures}
    figures["Flower, CPU ns per byte of a message"] = wire()
    measure.finish(options, figures, goal=goals, what="relative error of the prediction")


if __name__ == "__main__":
    main()
