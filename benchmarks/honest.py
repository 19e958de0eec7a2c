"""What the guard costs where nobody lies: digits, unlike clients, sizes over two decades.

Every problem is run without a guard, with the default one and with the strict one, with the same
seeds.  A figure is the accuracy without a guard minus that with it, in points, the mean over seeds
(and of the last evaluations); beside it, how many replies the guard changed.

Run: python benchmarks/honest.py --check
"""

import statistics
import warnings

import torch
from torch import nn

import measure
from fedlada import Evaluation, LocalTraining, algorithm, simulate
from fedlada.data import ClientData, load, normalise, partition
from fedlada.data.digits import STATISTICS

CLIENTS, COHORT, LAST = 50, 10, 5
RATES = {"fedlada-paper": 0.01, "fedavg": 0.3, "fedcm": 0.3, "localadam": 0.003, "scaffold": 0.1,
         "feddyn": 0.1}  # fmt: skip
STEPS = LocalTraining(steps=20, batch_size=10)
EPOCHS = LocalTraining(steps=None, epochs=2, batch_size=10)
PROBLEMS = {
    "Dirichlet 0.1": (0.0, STEPS, "uniform"),
    "two decades, by examples": (2.0, STEPS, "examples"),
    "two decades, by epochs": (2.0, EPOCHS, "uniform"),
}
"""Decades of client sizes, local training and weighting."""


def digits(split: str) -> ClientData:
    data = load("digits", split=split)
    return ClientData(inputs=normalise(data.inputs, *STATISTICS), labels=data.labels)


def clients(decades: float, seed: int) -> list[ClientData]:
    """Equal clients at Dirichlet 0.1, or sizes spread evenly on a log scale at Dirichlet 0.6."""
    whole = digits("train")
    if not decades:
        dealt = partition(
            whole.labels, "client-prior", clients=CLIENTS, concentration=0.1, seed=seed
        ).indices
    else:
        torch.manual_seed(seed)
        sizes = 10 ** (decades * torch.linspace(0, 1, CLIENTS))[torch.randperm(CLIENTS)]
        sizes = (1.5 * sizes / sizes.sum() * len(whole)).round().clamp_min(3).int().tolist()
        prior = torch.distributions.Dirichlet(torch.full((10,), 0.6)).sample((CLIENTS,))
        weights = prior[:, whole.labels]
        dealt = [torch.multinomial(w, n, True) for w, n in zip(weights, sizes, strict=True)]
    return [ClientData(inputs=whole.inputs[rows], labels=whole.labels[rows]) for rows in dealt]


def accuracy(name: str, problem: str, guard: str, seed: int, rounds: int) -> tuple[float, int]:
    """Mean accuracy of the last evaluations in percent, and the number of replies changed."""
    decades, train, weighting = PROBLEMS[problem]
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the guard says at the end that it stepped in
        records = simulate(
            model,
            clients(decades, seed),
            algorithm=algorithm(name, lr=RATES[name]),
            rounds=rounds,
            cohort=COHORT,
            seed=seed,
            train=train,
            weighting=weighting,
            guard={} if guard == "default" else guard,
            evaluate=Evaluation(data=digits("test")),
            evaluate_every=2,
        ).run()
    found = [r.metrics["test_accuracy"] for r in records if "test_accuracy" in r.metrics]
    changed = sum(sum(r.limited.values()) + sum(r.rejected.values()) for r in records)
    return 100 * statistics.mean(found[-LAST:]), changed


def main() -> None:
    torch.set_num_threads(1)
    parser = measure.parser(__doc__.splitlines()[0])
    usual = ["fedlada-paper", "fedavg"]
    parser.add_argument("--algorithms", nargs="+", choices=RATES, default=usual)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--rounds", type=int, default=60)
    options = parser.parse_args()
    figures = {}
    for name in options.algorithms:
        for problem in PROBLEMS:
            found = {
                guard: [accuracy(name, problem, guard, s, options.rounds) for s in options.seeds]
                for guard in ("off", "default", "strict")
            }
            open_ = [a for a, _ in found["off"]]
            for guard in ("default", "strict"):
                lost = [o - a for o, (a, _) in zip(open_, found[guard], strict=True)]
                key = f"{name}, {problem}, {guard}"
                figures[key] = statistics.mean(lost)
                print(
                    f"{key}: {statistics.mean(lost):+.2f} points of {statistics.mean(open_):.1f}"
                    f" ({min(lost):+.2f} to {max(lost):+.2f}), replies changed:"
                    f" {sum(n for _, n in found[guard])} of"
                    f" {len(options.seeds) * options.rounds * COHORT}",
                    flush=True,
                )
    goal = {key: 0.3 for key in figures if key.endswith("default")}
    measure.finish(options, figures, goal=goal, what="honest")


if __name__ == "__main__":
    main()
