"""Write what became of the paper's claims, a row each, into claims.md.

    python experiments/paper/publish.py

Figures and verdicts are computed from the packed records of experiments/desk, by these rules:

- A comparison of two methods with several seeds is reproduced if Student's 95 % interval over the
  same seeds excludes no difference, on the side of the method that the paper favours.
- With one seed nothing is reproduced.  The run agrees if it favours the same method, with final
  accuracies by more than a point.
- An order agrees if the figures of the row have it; accuracies must differ by more than a point.
- What the paper shows on ResNet-18 and these records on LeNet says so in its verdict.

With ``--check`` it writes nothing and exits 1 if the page does not have the rows of the records.
"""

from __future__ import annotations

import argparse
import json
import os
import runpy
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from fedlada.experiment.report.pairs import Interval, Measure, final_of, holm, interval
from fedlada.experiment.report.runs import Runs

HERE = Path(os.path.relpath(Path(__file__).parent))
DESK = HERE / "../desk"
PAGE = HERE / "claims.md"
desk = runpy.run_path(str(DESK / "publish.py"))
recorded, fill, markdown = desk["recorded"], desk["fill"], desk["markdown"]
LAST = desk["LAST"]

POINT = 1.0
"""Differences of accuracy within it are noise with one seed."""
LENET, RESNET = "LeNet", "ResNet-18"
MAIN, SIMULATOR = "desk/main.toml", "desk/simulator.toml"
FEDLADA = "main/fedlada-lr*-seed0"
HEADER = ["claim", "paper", "here", "on", "seeds", "verdict"]
HEADER += ["command: `fedlada sweep experiments/…`"]


@dataclass(frozen=True)
class Row:
    """A claim, what the records say of it, and the file of the sweep that asks."""

    claim: str
    paper: str
    file: str
    here: str = ""
    on: str = ""
    seeds: int = 0
    holds: bool | None = None
    """Whether the records agree; None if it was not run."""
    pair: Interval | None = None
    """The interval that decided, if there are several seeds."""
    same: bool = False
    """Whether the paper's claim is about the network of the records, if that is LeNet."""

    @property
    def verdict(self) -> str:
        """What the records say of the claim."""
        if not self.holds:
            return "not run" if self.holds is None else "not reproduced"
        word = "**reproduced**" if self.seeds > 1 else "one run agrees"
        return word + (", LeNet" if self.on == LENET and not self.same else "")

    @property
    def cells(self) -> list[str]:
        """The row of the table."""
        file = f"`{self.file}`" if self.file else "–"
        seeds = str(self.seeds) if self.seeds else ""
        return [self.claim, self.paper, self.here, self.on, seeds, self.verdict, file]


def not_run(claim: str, paper: str, file: str = "") -> Row:
    """Return a row without records; the file, if there is one, would make them."""
    return Row(claim, paper, file)


def compared(first: str, other: str, target: float | None) -> tuple[Measure, Interval | None]:
    """Compare runs by name: rounds to a target by ratio, or the final score by difference."""
    directories = [*recorded(first), *recorded(other)]
    runs = Runs.read(directories, None if target is None else [target], last=LAST)
    names = dict(runs.ends.select("directory", "variant").rows())
    column = f"rounds_to_{target:g}" if target is not None else ""
    measure = final_of(runs) if target is None else Measure("rounds", column, ratio=True)
    a, b = (names[str(recorded(pattern)[0])] for pattern in (first, other))
    return measure, interval(runs, a, b, measure)


def versus(
    claim: str, paper: str, file: str, first: str, other: str, *, over: str = "",
    to: float | None = None,
    on: str = LENET, lower: bool | None = None, same: bool = False,
) -> Row:  # fmt: skip
    """Return a row that compares two methods: rounds to a score ``to``, or else final points."""
    measure, found = compared(first, other, to)
    assert found is not None
    lower = to is not None if lower is None else lower
    sign = -1 if lower else 1
    none = 1.0 if measure.ratio else 0.0
    holds = sign * (found.mean - none) > 0
    if found.count > 1:
        holds = measure.word(found, sign) == "ahead"
    elif not measure.ratio:
        holds = sign * found.mean > POINT
    what = f" of its rounds to {100 * to:g} %" if to is not None else f" points{over}"
    here = measure.text(found).removeprefix("×") + what
    return Row(claim, paper, file, here, on, found.count, holds, found, same)


def number(pattern: str, column: str, *targets: float) -> float | None:
    """Return the mean over runs of a column of their ends; None if a run has none."""
    question = desk["Question"]("", (pattern,), targets=targets)
    values = desk["ended"](question)[column]
    return None if values.null_count() else float(values.mean())


def order(
    claim: str, paper: str, file: str, runs: Sequence[tuple[str, str]], *, column: str = "late",
    digits: int = 1, seeds: int = 1,
) -> Row:  # fmt: skip
    """Return a row that claims that the figures of some runs fall, in their order."""
    target = [float(column.rpartition("_")[2])] if column.startswith("rounds_to") else []
    found = [number(pattern, column, *target) for _, pattern in runs]
    known = [(name, n) for (name, _), n in zip(runs, found, strict=True) if n is not None]
    text = ", ".join(f"{name}: {n:.{digits}f}" for name, n in known)
    least = POINT if column == "late" else 0.0
    falls = all(a - b > least for (_, a), (_, b) in pairwise(known))
    return Row(claim, paper, file, text, LENET, seeds, falls and len(known) == len(runs))


def rounds_to(claim: str, paper: float, file: str, pattern: str, target: float) -> Row:
    """Return a row about the number of rounds to a target, which agrees if within a tenth."""
    found = number(pattern, f"rounds_to_{target:g}", target)
    assert found is not None
    return Row(claim, f"{paper}", file, f"{found:.0f}", RESNET, 1, found <= 1.1 * paper)


def slopes() -> list[Row]:
    """Return the rows about the linear speedup."""
    file = DESK / "results/speedup/speedup.json"
    fits = json.loads(file.read_text())["slopes"]
    rows = []
    for claim, name, part in (
        ("Linear speedup in S·K·T, similar clients", "fedlada", "SKT"),
        ("Linear speedup in K, heterogeneous clients", "fedlada-unlike-clients", "K"),
    ):
        fit = fits[name][part]
        here = f"{fit['slope']:+.2f} ({fit['low']:+.2f} to {fit['high']:+.2f})".replace("-", "−")
        holds = fit["low"] <= -0.5 <= fit["high"]
        seeds = 3 if part == "SKT" else 1
        rows.append(Row(claim, "slope −0.5", "", here, "smooth, 20 dimensions", seeds, holds))
    return rows


def bytes_of(claim: str, paper: str, first: str, target: float | None = None) -> Row:
    """Return a row about bytes over FedAvg's: of a round, at most twice; to a target, fewer."""
    directories = [run for p in (first, "main/fedavg-*") for run in recorded(p)]
    runs = Runs.read(directories, None if target is None else [target], last=LAST)
    names = dict(runs.ends.select("directory", "variant").rows())
    variants = [names[str(recorded(pattern)[0])] for pattern in (first, "main/fedavg-*")]
    if target is not None:
        measure = Measure("bytes", f"bytes_to_{target:g}", ratio=True)
        found = interval(runs, *variants, measure)
        assert found is not None
        here = f"{measure.text(found).removeprefix('×')} to {100 * target:g} %"
        holds = measure.word(found, -1) == "ahead"
        return Row(claim, paper, MAIN, here, LENET, found.count, holds, found)
    sent = [
        runs.rounds.filter(variant=v).select("bytes_down", "bytes_up").sum().row(0)
        for v in variants
    ]
    ratio = sum(sent[0]) / sum(sent[1])
    return Row(claim, paper, MAIN, f"{ratio:.2f}", LENET, 3, ratio <= 2)


def rows() -> list[Row]:
    """Return all rows, in the order of the paper."""
    full, full100 = "paper/cifar10.toml", "paper/cifar100.toml"
    return [
        # Speed.
        rounds_to("Rounds in which FedLADA reaches 70 % on CIFAR-10", 44.6, SIMULATOR,
                  "simulator/fedlada", 0.7),
        versus("It needs fewer rounds than FedAvg", "0.47, to 70 %", SIMULATOR,
               "simulator/fedlada", "simulator/fedavg", to=0.6, on=RESNET),
        versus("Fewer than FedAvg, LeNet", "0.47, to 70 %", MAIN, "main/fedlada-lr*",
               "main/fedavg-*", to=0.58),
        versus("Fewer than FedProx", "0.49, to 70 %", MAIN, FEDLADA, "main/fedprox-*", to=0.58),
        versus("Fewer than SCAFFOLD", "0.52, to 70 %", MAIN,
               "main/fedlada-lr*", "main/scaffold-*", to=0.58),
        not_run("Fewer than SCAFFOLD, ResNet-18", "0.52, to 70 %", full),
        versus("Fewer than FedCM", "0.62, to 70 %", SIMULATOR,
               "simulator/fedlada", "simulator/fedcm", to=0.7, on=RESNET),
        versus("Fewer than FedCM, LeNet", "0.62, to 70 %", MAIN, "main/fedlada-lr*",
               "main/fedcm-*", to=0.58),
        versus("Fewer than FedCM with the simulator's weight decay, LeNet", "0.62, to 70 %",
               "desk/decay.toml", FEDLADA, "decay/fedcm-lr0.4", to=0.58),
        versus("Fewer than FedAdam", "0.46, to 70 %", MAIN, FEDLADA, "main/fedadam-*", to=0.58),
        not_run("Fewer than FedAdam, ResNet-18", "0.46, to 70 %", full),
        versus("Fewer than LocalAdam, its lr a third of the paper's", "0.68, to 70 %",
               "desk/simulator_lr.toml", "simulator/fedlada", "simulator_lr/*", to=0.6, on=RESNET),
        versus("Fewer than LocalAdam, its lr tuned", "0.68, to 70 %", MAIN,
               "main/fedlada-lr*", "main/localadam-lr*", to=0.58),
        versus("LocalAdam needs fewer rounds than FedAvg", "0.70, to 70 %", MAIN,
               "main/localadam-lr*", "main/fedavg-*", to=0.58),
        versus("FedAdam needs more rounds than FedAvg", "1.02, to 70 %", MAIN,
               "main/fedadam-*", "main/fedavg-*-seed0", to=0.58, lower=False),
        not_run("Rounds to 80 % on CIFAR-10, and to 98 % in training", "186.4; 765", full),
        versus("FedLADA needs the fewest rounds on CIFAR-100: fewer than FedCM", "0.78, to 40 %",
               "desk/cifar100.toml", "cifar100/fedlada*", "cifar100/fedcm*", to=0.2),
        versus("Fewer than FedAvg on CIFAR-100", "0.31, to 40 %", "desk/cifar100.toml",
               "cifar100/fedlada*", "cifar100/fedavg*", to=0.2),
        not_run("All of TinyImageNet", "110.2 rounds to 28 %"),
        # Accuracy.
        versus("FedLADA ends above FedAvg on CIFAR-10", "4.2 points", MAIN,
               "main/fedlada-lr*", "main/fedavg-*"),
        versus("FedLADA ends above LocalAdam", "7.5 points", MAIN, "main/fedlada-lr*",
               "main/localadam-lr*"),
        versus("FedLADA ends slightly above FedCM", "1.2 points", MAIN, "main/fedlada-lr*",
               "main/fedcm-*"),
        versus("FedLADA ends above FedCM, ResNet-18", "1.2 points", SIMULATOR,
               "simulator/fedlada", "simulator/fedcm", on=RESNET),
        versus("FedLADA, its decay tuned, ends above FedCM with the simulator's", "1.2 points",
               "desk/decay.toml", FEDLADA, "decay/fedcm-lr0.1"),
        versus("FedLADA ends above FedCM on CIFAR-100", "1 point", "desk/cifar100.toml",
               "cifar100/fedlada*", "cifar100/fedcm*"),
        versus("LocalAdam ends below FedAvg", "−3.3 points", MAIN,
               "main/localadam-lr*", "main/fedavg-*", lower=True),
        not_run("Accuracies after 1,500 rounds of ResNet-18", "86.1 %", full),
        not_run("Accuracies after 1,500 rounds of CIFAR-100", "52.6 %", full100),
        # Amending.
        versus("Amending helps SGD on clients", "3.1 points", MAIN, "main/fedcm-*",
               "main/fedavg-*"),
        versus("Amending helps adaptive clients", "7.5 points", "desk/grid.toml", FEDLADA,
               "grid/localamsgrad*"),
        versus("FedAdam ends above FedAvg", "1.9 points", MAIN,
               "main/fedadam-*", "main/fedavg-*-seed0"),
        order("Amended FedAdam falls with smaller alpha", "falls extremely", "desk/fedadam.toml",
              [("alpha 1", "main/fedadam-*"), ("0.5", "fedadam/*alpha0.5"),
               ("0.3", "fedadam/*alpha0.3"), ("0.1", "grid/fedadam-amended*")]),
        order("At alpha 0.1 no smaller server lr repairs amended FedAdam", "slower than FedAdam",
              "desk/fedadam.toml",
              [("FedAdam", "main/fedadam-*"), ("0.01", "fedadam/*server_lr0.01"),
               ("0.001", "fedadam/*server_lr0.001")]),
        versus("Adam on server and clients fails", "fails", "desk/grid.toml", "grid/adam-adam*",
               "main/fedavg-*-seed0", lower=True, over=" over FedAvg"),
        # Settings.
        order("The best alpha lies inside (0, 1)", "0.05 best of 0.01 to 1", "desk/alpha.toml",
              [("0.1", FEDLADA), ("0.05", "alpha/*alpha0.05"), ("0.01", "alpha/*alpha0.01")]),
        order("The best alpha is better than a large one", "1.0: 7.8 points lower",
              "desk/alpha.toml",
              [("0.1", FEDLADA), ("0.5 (lr / 5)", "alpha/fedlada-lr0.004*")]),
        order("More local steps need fewer rounds", "2.2 times as fast with 4 epochs as with 2",
              "desk/k.toml",
              [("20 steps", "k/*steps20"), ("50", FEDLADA), ("100", "k/*steps100")],
              column="rounds_to_0.55", digits=0),
        order("More local steps end lower", "41.9 % with 2 epochs, 33.8 % with 20", "desk/k.toml",
              [("20 steps", "k/*steps20"), ("50", FEDLADA), ("200", "k/*steps200")]),
        order("20 epochs end lower than 5", "40.2 % with 4, 33.8 % with 20", "desk/k.toml",
              [("50 steps", FEDLADA), ("200", "k/*steps200")]),
        order("More clients in a round end higher", "50 % best, then 20, 10, 5",
              "desk/participation.toml",
              [("50 clients", "participation/*cohort50"), ("20", "participation/*cohort20"),
               ("10", FEDLADA), ("5", "participation/*cohort5")]),
        not_run("Batches of 25 are better than batches of 50", "0.7 points for FedAvg"),
        # Appendix.
        order("FedLADA's clients end closest together, LocalAdam's furthest apart", "a figure",
              MAIN,
              [("LocalAdam", "main/localadam-lr*"), ("FedAvg", "main/fedavg-*"),
               ("SCAFFOLD", "main/scaffold-*"), ("FedLADA", "main/fedlada-lr*")],
              column="consistency", seeds=3),
        order("A smaller alpha keeps clients closer together", "a figure", "desk/alpha.toml",
              [("0.2", "alpha/*alpha0.2"), ("0.1", FEDLADA), ("0.05", "alpha/*alpha0.05"),
               ("0.01", "alpha/*alpha0.01")], column="consistency", digits=2),
        order("SCAFFOLD's scale of 1 is better than 0", "81.8, 78.3 %",
              "desk/scaffold.toml",
              [("1", "main/scaffold-*-seed0"), ("0 (FedAvg)", "main/fedavg-*-seed0")]),
        order("A scale above 1 is worse than 1", "81.8, 81.1, 80.6 %", "desk/scaffold.toml",
              [("1", "main/scaffold-*-seed0"), ("1.25", "scaffold/*scale1.25"),
               ("1.5", "scaffold/*scale1.5")]),
        order("A scale of 1.5 is better than 0", "80.6, 78.3 %", "desk/scaffold.toml",
              [("1.5", "scaffold/*scale1.5"), ("0 (FedAvg)", "main/fedavg-*-seed0")]),
        *(
            versus(f"With smooth activations FedLADA ends above {name} ({act.upper()})", "a figure",
                   "desk/smooth.toml", f"smooth/fedlada-activation{act}*",
                   f"smooth/{name.lower()}-activation{act}*", same=True)
            for act in ("gelu", "smu") for name in ("FedAvg", "LocalAdam", "FedCM")
        ),
        bytes_of("FedLADA sends at most twice FedAvg's bytes a round", "2", "main/fedlada-lr*"),
        bytes_of("FedCM sends at most twice FedAvg's bytes a round", "2", "main/fedcm-*"),
        bytes_of("FedLADA needs fewer bytes than FedAvg", "0.95 to 70 %, 0.69 to 80 %",
                 "main/fedlada-lr*", 0.58),
        *slopes(),
    ]  # fmt: skip


def table() -> str:
    """Return all rows as Markdown, and how many intervals Holm's correction leaves."""
    every = rows()
    chances = [row.pair.chance for row in every if row.pair and row.pair.chance is not None]
    shown, left = sum(chance <= 0.05 for chance in chances), holm(row.pair for row in every)
    return (
        markdown([HEADER, [":--"] * len(HEADER), *(row.cells for row in every)])
        + f"\n\nOf {len(chances)} intervals over several seeds, {shown} exclude no difference;"
        f" {left} do after Holm's correction for all of them."
    )


def main() -> int:
    """Do what the arguments ask for; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing, compare the page")
    arguments = parser.parse_args()
    return int(fill([PAGE], {"claims": table()}, check=arguments.check))


if __name__ == "__main__":
    sys.exit(main())
