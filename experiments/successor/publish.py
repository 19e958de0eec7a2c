"""Bring the sweeps of this directory into it: packed records, and the tables of the README.

    python experiments/successor/publish.py --from runs

packs what runs/successor-PROBLEM recorded into results/PROBLEM.jsonl and fills in the tables, which
have the tournament's tries beside them.  Without ``--from`` it does so with the records that are
here; with ``--check`` it writes nothing and exits 1 if a table is not that of the records.
"""

from __future__ import annotations

import argparse
import os
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import mean, stdev

from fedlada.experiment.config.cells import cells
from fedlada.experiment.packed import pack, packed_runs
from fedlada.experiment.results.scores import best_first
from fedlada.experiment.run.directory import RunDirectory
from fedlada.experiment.tournament.stages import TRIES
from fedlada.training.objective import BITS, PERCENT, Scale

HERE = Path(os.path.relpath(Path(__file__).parent))
RESULTS, TOURNAMENT, PAGE = HERE / "results", HERE / "../tournament", HERE / "README.md"
filled = runpy.run_path(str(HERE / "../desk/publish.py"))["filled"]
ACCURACY, TEXT = ("validation_accuracy", PERCENT), ("validation_bits", BITS)
SCORES = {"cifar10": ACCURACY, "cifar100": ACCURACY, "shakespeare": TEXT, "vit": ACCURACY}
BESIDE = ("sharedmuon", "fedmuon", "fedcm", "fedacg", "fedavg", "fedlada", "fedlalr", "localadam")
BESIDE += ("fedadamw", "fedlada-rows")
LAST = 3  # evaluations that are averaged, as in the tournament


def collect(runs: Path) -> None:
    """Pack the runs that have ended, beside those that are here already."""
    for problem in SCORES:
        if any(runs.glob(f"successor-{problem}/*/done.json")):
            pack(runs / f"successor-{problem}", RESULTS / f"{problem}.jsonl")


def tries(problem: str) -> Iterator[tuple[str, float, float]]:
    """Yield variant, lr and score of the runs here and of the tournament's that are as long."""
    rounds = next(iter(cells(HERE / f"{problem}.toml").values())).federation.rounds
    files = [RESULTS / f"{problem}.jsonl", TOURNAMENT / f"results/{problem}.jsonl"]
    for file in (file for file in files if file.exists()):
        for run in map(RunDirectory, packed_runs(file)):
            config, records = run.table(), list(run.records())
            own = file.parent == RESULTS
            beside = run.path.parent.name == TRIES and config["algorithm"] in BESIDE
            if (own or beside) and len(records) == rounds:
                settings, name = config["settings"], config["label"]
                alpha = f", alpha {settings['alpha']:g}" if "alpha" in settings else ""
                scores = [r["metrics"][SCORES[problem][0]] for r in records if r["metrics"]]
                yield (
                    f"`{name}`{alpha}" if beside else f"{name}{alpha}",
                    settings["lr"],
                    mean(scores[-LAST:]),
                )


def table(problem: str) -> str:
    """Every variant with its lr and scores, the best lr in bold and the best variant first."""
    scale: Scale = SCORES[problem][1]
    found: dict[str, dict[float, list[float]]] = {}
    for variant, lr, score in tries(problem):
        found.setdefault(variant, {}).setdefault(lr, []).append(score)
    means = {k: {lr: mean(scores) for lr, scores in v.items()} for k, v in found.items()}
    lines = [f"| | lr: {scale.unit} |", "| :-- | :-- |"]
    for variant in best_first({k: scale.best([*v.values()]) for k, v in means.items()}, scale):
        best = best_first(means[variant], scale)[0]
        texts = []
        for lr, scores in sorted(found[variant].items()):
            spread = f" ± {scale.number(stdev(scores))}" if len(scores) > 1 else ""
            text = f"{lr:g}: {scale.number(mean(scores))}{spread}"
            texts.append(f"**{text}**" if lr == best else text)
        lines.append(f"| {variant} | {', '.join(texts)} |")
    return "\n".join(lines)


def main() -> int:
    """Do what the arguments ask for; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--from", dest="runs", type=Path, metavar="DIR", help="pack these")
    parser.add_argument("--check", action="store_true", help="write nothing, compare the tables")
    arguments = parser.parse_args()
    if arguments.runs is not None:
        collect(arguments.runs)
    text = filled(PAGE.read_text(), {f"successor {name}": table(name) for name in SCORES})
    if arguments.check:
        same = text == PAGE.read_text()
        print("the tables are those of the records" if same else "run this without --check")
        return 0 if same else 1
    PAGE.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
