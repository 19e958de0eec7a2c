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
from itertools import islice
from pathlib import Path
from statistics import mean, quantiles, stdev

import polars as pl

from fedlada.experiment.config.cells import cells
from fedlada.experiment.packed import pack, packed_runs
from fedlada.experiment.results.frames import frame, summary
from fedlada.experiment.results.scores import best_first, reached, scored, shown
from fedlada.experiment.run.directory import RunDirectory
from fedlada.experiment.tournament.stages import TRIES
from fedlada.training.objective import BITS, PERCENT, Scale

HERE = Path(os.path.relpath(Path(__file__).parent))
RESULTS, TOURNAMENT, PAGE = HERE / "results", HERE / "../tournament", HERE / "README.md"
desk = runpy.run_path(str(HERE / "../desk/publish.py"))
fill, markdown = desk["fill"], desk["markdown"]
ACCURACY, TEXT = ("validation_accuracy", PERCENT), ("validation_bits", BITS)
SCORES = {"cifar10": ACCURACY, "cifar100": ACCURACY, "shakespeare": TEXT, "vit": ACCURACY}
BESIDE = ("sharedmuon", "fedmuon", "fedcm", "fedacg", "fedavg", "fedlada", "fedlalr", "localadam")
BESIDE += ("fedadamw", "fedlada-rows")
SAME = {
    "Muon": "sharedmuon",
    "AMSGrad amended": "fedlada",
    "AMSGrad amended, no momentum of its own": "fedlada-without-m",
}
"""Variants that are a contestant of the tournament: one row for both, and each seed once."""
DELAY, FINALS = "digits", "finals"
SEED, CODEC = "federation.seed", "federation.codec"
EARLY = 20  # rounds
LAST = 3  # evaluations that are averaged, as in the tournament


def collect(runs: Path) -> None:
    """Pack the runs that have ended, beside those that are here already."""
    for problem in (*SCORES, DELAY, FINALS):
        if any((runs / f"successor-{problem}").rglob("done.json")):
            pack(runs / f"successor-{problem}", RESULTS / f"{problem}.jsonl")


def tries(problem: str) -> Iterator[tuple[str, float, int, float]]:
    """Yield variant, lr, seed and score of the runs here and of the tournament's as long ones."""
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
                known = SAME.get(name, name if beside else None)
                yield (
                    f"`{known}`{alpha}" if known else f"{name}{alpha}",
                    settings["lr"],
                    config["federation"]["seed"],
                    score(run, SCORES[problem][0]),
                )


def table(problem: str) -> str:
    """Every variant with its lr and scores, the best lr in bold and the best variant first."""
    scale: Scale = SCORES[problem][1]
    found: dict[str, dict[float, dict[int, float]]] = {}
    for variant, lr, seed, score in tries(problem):
        found.setdefault(variant, {}).setdefault(lr, {})[seed] = score
    means = {k: {lr: mean(by.values()) for lr, by in v.items()} for k, v in found.items()}
    lines = [f"| | lr: {scale.unit} |", "| :-- | :-- |"]
    for variant in best_first({k: scale.best([*v.values()]) for k, v in means.items()}, scale):
        best = best_first(means[variant], scale)[0]
        texts = []
        for lr, by_seed in sorted(found[variant].items()):
            spread = f" ± {scale.number(stdev(by_seed.values()))}" if len(by_seed) > 1 else ""
            text = f"{lr:g}: {scale.number(means[variant][lr])}{spread}"
            texts.append(f"**{text}**" if lr == best else text)
        lines.append(f"| {variant} | {', '.join(texts)} |")
    return "\n".join(lines)


def score(run: RunDirectory, metric: str) -> float:
    """Return the mean of a run's last evaluations."""
    return mean([r["metrics"][metric] for r in run.records() if r["metrics"]][-LAST:])


def delay() -> str:
    """Return the mean accuracy of the first rounds by beta1 and number of steps, at the best lr."""
    found: dict[float, dict[int, dict[float, list[float]]]] = {}
    for run in map(RunDirectory, packed_runs(RESULTS / f"{DELAY}.jsonl")):
        config = run.config
        by_steps = found.setdefault(config.settings["betas"][0], {})
        by_lr = by_steps.setdefault(config.train.steps, {})
        first = [r["metrics"][ACCURACY[0]] for r in islice(run.records(), EARLY) if r["metrics"]]
        by_lr.setdefault(config.settings["lr"], []).append(mean(first))
    columns = sorted(next(iter(found.values())))
    lines = [f"| beta1 | {' | '.join(f'{steps} steps' for steps in columns)} |"]
    lines.append(f"| --: | {' | '.join('--:' for _ in columns)} |")
    for beta, by_steps in sorted(found.items()):
        texts = []
        for steps in columns:
            lr, scores = max(by_steps[steps].items(), key=lambda pair: mean(pair[1]))
            texts.append(f"{scored(pl.Series(scores), PERCENT)} ({lr:g})")
        lines.append(f"| {beta:g} | {' | '.join(texts)} |")
    return "\n".join(lines)


def finals() -> str:
    """Return a row for each problem and codec of SharedMuon, beside FedAvg of the same seeds."""
    columns = ["problem", "", "seeds", "score", "time of a round", "bytes of a round"]
    columns += ["target", "rounds to it", "bytes to it"]
    rows = [columns, [":--", ":--", *["--:"] * (len(columns) - 2)]]
    runs: dict[str, list[Path]] = {}
    for run in packed_runs(RESULTS / f"{FINALS}.jsonl"):
        runs.setdefault(RunDirectory(run).config.label.split()[0], []).append(run)
    for problem, scale in ((name, SCORES[name][1]) for name in SCORES if name in runs):
        targets = RunDirectory(runs[problem][0]).config.evaluate.targets
        ends = summary(frame(runs[problem]), targets)
        for name, measured in (("score", final), ("time", fast), ("traffic", traffic)):
            values = [measured(RunDirectory(Path(run))) for run in ends["directory"]]
            ends = ends.with_columns(pl.Series(name, values, dtype=pl.Float64))
        own = ends.filter(pl.col("title").str.ends_with("fedavg"))
        target = [t for t in targets if own[f"rounds_to_{t:g}"].null_count() == 0][-1]
        for (title, codec), group in ends.group_by("title", CODEC, maintain_order=True):
            pairs = group.join(own, on=SEED, suffix="_fedavg")
            share = {
                column: reached(pairs[column] / pairs[f"{column}_fedavg"], 1, 2)
                for column in ("time", "traffic", f"rounds_to_{target:g}", f"bytes_to_{target:g}")
            }
            name = str(title).removeprefix(f"{problem} ")
            text = f"`{name}`" + (f", `{codec}`" if codec != "exact" else "")
            time, per, *to = share.values()
            row = [
                problem,
                text,
                str(len(group)),
                scored(group["score"], scale),
                time,
                per,
                shown(target, scale),
                *to,
            ]
            rows.append(row)
    return str(markdown(rows))


def final(run: RunDirectory) -> float:
    """Return the mean of the last evaluations of a run on test data."""
    return score(run, "test_bits" if run.config.model.name == "decoder" else "test_accuracy")


def fast(run: RunDirectory) -> float:
    """Return the seconds of a run's fast rounds: the tenth percentile, as the tournament does."""
    return quantiles((record["seconds"] for record in run.records()), n=10)[0]


def traffic(run: RunDirectory) -> float:
    """Return the bytes of a round."""
    return mean(record["bytes_up"] + record["bytes_down"] for record in run.records())


def main() -> int:
    """Do what the arguments ask for; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--from", dest="runs", type=Path, metavar="DIR", help="pack these")
    parser.add_argument("--check", action="store_true", help="write nothing, compare the tables")
    arguments = parser.parse_args()
    if arguments.runs is not None:
        collect(arguments.runs)
    made = {f"successor {name}": table(name) for name in SCORES}
    made |= {"delay": delay(), "finals": finals()}
    return int(fill([PAGE], made, check=arguments.check))


if __name__ == "__main__":
    sys.exit(main())
