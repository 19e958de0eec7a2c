"""How early may settings be dropped? Asks the sweeps over settings in experiments/desk/results.

For each sweep and round: how far the leader at that round, and the best of its better half, end
behind the best after 100 rounds. A score is the mean of three evaluations, five rounds apart.
"""

import math
from pathlib import Path

from fedlada.experiment.run.directory import RunDirectory, runs_in

RESULTS = Path(__file__).parent.parent / "desk" / "results"
SWEEPS = ("alpha", "scaffold", "k", "fedadam", "why")
END, EVERY, LAST = 100, 5, 3


def score(accuracies: dict[int, float], at: int) -> float:
    """Return the mean accuracy of the last evaluations up to a round."""
    rounds = [n for n in sorted(accuracies) if n <= at and n % EVERY == 0][-LAST:]
    return sum(accuracies[n] for n in rounds) / len(rounds)


def main() -> None:
    """Print a row per sweep: points lost by the leader / by the better half, at each round."""
    rounds = range(20, END, 10)
    print(f"{'sweep':10}", *(f"{'round ' + str(n):>10}" for n in rounds))
    for sweep in SWEEPS:
        runs = {}
        for run in runs_in(RESULTS / f"{sweep}.jsonl"):
            records = RunDirectory(run).records()
            found = {r["round"]: r["metrics"].get("test_accuracy") for r in records}
            if max(found) >= END:
                runs[run.name] = {n: a for n, a in found.items() if a is not None}
        ends = {name: score(own, END) for name, own in runs.items()}
        cells = []
        for n in rounds:
            order = sorted(runs, key=lambda name: -score(runs[name], n))
            half = order[: math.ceil(len(order) / 2)]
            lost = [100 * (max(ends.values()) - max(ends[o] for o in s)) for s in (order[:1], half)]
            cells.append(f"{lost[0]:.1f} / {lost[1]:.1f}")
        print(f"{sweep:10}", *(f"{cell:>10}" for cell in cells))


if __name__ == "__main__":
    main()
