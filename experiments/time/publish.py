"""Fill in the tables about simulated time in docs/, and draw its figure, from the packed records.

    python experiments/time/publish.py --from runs

packs what runs/time-race and runs/time-lenet recorded into results/ before that.  ``--best runs``
prints the options of a sweep that choose the best tries of race.toml there.  With ``--check`` it
writes nothing and exits 1 if a table is not that of the records.
"""

from __future__ import annotations

import argparse
import json
import os
import runpy
import sys
from collections.abc import Iterable, Iterator
from math import inf
from pathlib import Path
from typing import NamedTuple

import polars as pl

from fedlada.engines import Devices
from fedlada.engines.schedule import schedule
from fedlada.engines.timed import Timetable, work_of
from fedlada.experiment.packed import pack, packed_runs
from fedlada.experiment.report.figures import styled
from fedlada.experiment.report.pairs import Measure, paired
from fedlada.experiment.results.frames import frame, summary
from fedlada.experiment.results.scores import reached, spread
from fedlada.experiment.run.directory import RunDirectory
from fedlada.models import LeNet
from fedlada.protocol.codecs import Codecs
from fedlada.results.plot import plot
from fedlada.server.record import record_of
from fedlada.training.local import LocalTraining

HERE = Path(os.path.relpath(Path(__file__).parent))
RESULTS, DOCS = HERE / "results", HERE / "../../docs"
DESK = HERE / "../desk/results"
FIGURE = DOCS / "images/time.svg"
PAGES = (DOCS / "bytes.md", DOCS / "time.md")
desk = runpy.run_path(str(HERE / "../desk/publish.py"))
fill, markdown = desk["fill"], desk["markdown"]

TARGET = 0.58
STEPS = (0.05, 0.005)
"""Median seconds of a local step; everything else is a default of the devices."""
CODED = (
    ("fedavg", "exact"),
    ("fedavg", "default"),
    ("fedcm", "exact"),
    ("fedcm", "default"),
    ("fedlada", "exact"),
    ("fedlada-rows", "exact"),
    ("fedlada-rows", "default"),
)


def coded() -> str:
    """Return how long recorded rounds would take on devices, and their seconds to the target.

    Devices change no bit of a run that waits for its whole cohort, so its schedule and its records
    belong together.
    """
    runs = [run for name in ("main", "bytes") for run in packed_runs(DESK / f"{name}.jsonl")]
    found: dict[tuple[str, str], list[tuple[float | None, ...]]] = {}
    for run in runs:
        config = RunDirectory(run).config
        for name, codec in CODED:
            if (name, Codecs.read(codec)) == (config.title, config.plan().codec):
                found.setdefault((name, codec), []).append(costs(run))
    columns = ["algorithm", "codec", f"rounds to {100 * TARGET:g} %"]
    columns += [f"seconds, a step of {step:g} s" for step in STEPS]
    rows = [columns, [":--", ":--", *["--:"] * (1 + len(STEPS))]]
    for name, codec in CODED:
        each = (pl.Series(values) for values in zip(*found[name, codec], strict=True))
        rows.append([f"`{name}`", f"`{codec}`", *(reached(values, 1, 0) for values in each)])
    return str(markdown(rows))


def costs(run: Path) -> tuple[float | None, ...]:
    """Return the rounds of a run to the target, and its seconds with each of the devices."""
    directory = RunDirectory(run)
    config, records = directory.config, list(directory.records())
    rounds = summary(frame([run]), (TARGET,)).row(0, named=True)[f"rounds_to_{TARGET:g}"]
    if rounds is None:
        return (None,) * (1 + len(STEPS))
    plan, model, train = config.plan(), LeNet(), LocalTraining(steps=config.train.steps)
    seconds = []
    for step in STEPS:
        devices = Devices(step=step)
        timetable = Timetable(devices, work_of(plan, model, devices, train, []))
        expected = list(schedule(plan, timetable, clients=config.data.clients or 0))[:rounds]
        if any(sorted(e.cohort) != r["cohort"] for e, r in zip(expected, records, strict=False)):
            raise SystemExit(f"{run} asked other clients than its plan does today")
        seconds.append(expected[-1].time)
    return rounds, *seconds


TARGETS = {"race": (0.85, 0.9), "lenet": (0.35, 0.4)}
"""The targets of race.toml and of lenet.toml."""
SMOOTH = 3
"""The number of evaluations, 20 or 24 replies apart, whose mean must reach a target."""
TRIES = "tries"
"""The runs that choose the learning rates; the others have other seeds."""

Raced = dict[tuple[str, str], dict[float, list[Path]]]
"""Runs by algorithm, rule and learning rate."""


def raced(runs: Iterable[Path], *, tries: bool) -> Raced:
    """Return those of the runs that choose the learning rates, or the others."""
    found: Raced = {}
    for run in runs:
        if (run.parent.name == TRIES) == tries:
            config = RunDirectory(run).config
            by_lr = found.setdefault((config.title, rule_of(run)), {})
            by_lr.setdefault(config.settings["lr"], []).append(run)
    return found


def best(runs: Iterable[Path]) -> Iterator[str]:
    """Yield patterns for the names of the runs with the best rate of each algorithm and rule.

    It reaches the highest target first or, if none does, ends with the highest accuracy.  Rounds of
    the first 20 of 26 replies have the rate of rounds that wait for 20.
    """

    def loss(run: Path) -> tuple[float, float]:
        reached = crossed(run, TARGETS["race"])[-1]
        return (inf if reached is None else reached.seconds), -ended(run)

    for (name, rule), by_lr in raced(runs, tries=True).items():
        lr = min(by_lr, key=lambda lr: loss(by_lr[lr][0]))
        late = rule.endswith("under way")
        endings = ["cohort20-close_after5-*"] if late else ["cohort20-rounds*", "cohort26-*"]
        yield from (f"{name}-lr{lr}-{ending}" for ending in endings)


def rule_of(run: Path) -> str:
    """Return what ends the rounds of a run."""
    plan = RunDirectory(run).config.federation
    if plan.close_after is None:
        return f"wait for {plan.cohort}"
    of = f"{plan.close_after} of {plan.cohort}"
    return f"{of} under way" if plan.staleness else f"the first {of}"


class Crossing(NamedTuple):
    """What it took to reach a target."""

    seconds: float
    tasks: int


def scores(run: Path) -> Iterator[tuple[Crossing, float]]:
    """Yield what each evaluation of a run comes after, and the mean of the last accuracies."""
    tasks, seen = 0, list[float]()
    for record in RunDirectory(run).records():
        tasks += len(record["cohort"])
        if record["metrics"]:
            seen = [*seen, record["metrics"]["test_accuracy"]][-SMOOTH:]
            yield Crossing(record["time"], tasks), sum(seen) / SMOOTH


def crossed(run: Path, targets: Iterable[float]) -> list[Crossing | None]:
    """Return what each target took, or None for one that was not reached."""
    found = list(scores(run))
    return [next((c for c, score in found if score >= target), None) for target in targets]


def ended(run: Path) -> float:
    """Return the mean of the last accuracies of a run."""
    *_, (_, score) = scores(run)
    return score


def rules_of(finals: Raced) -> list[str]:
    """Return what ends a round: all replies, then the first, then a few of those under way."""
    return sorted({rule for _, rule in finals}, key=lambda r: (r.endswith("way"), r[0] != "w"))


def race(name: str) -> str:
    """Return a table of the seconds and the tasks to the targets, with the best rates."""
    targets, finals = TARGETS[name], raced(packed_runs(RESULTS / f"{name}.jsonl"), tries=False)
    wait, *_ = rules = rules_of(finals)
    ((first, *_),) = finals[next(iter(finals))[0], wait].values()
    plan = RunDirectory(first).config.federation
    columns = ["algorithm", "a round", "lr", "seeds"]
    columns += [f"seconds to {100 * t:g} %" for t in targets]
    columns += [f"of {wait.replace('wait', 'waiting')}", f"tasks to {100 * targets[-1]:g} %"]
    columns += [f"accuracy after {plan.cohort * plan.rounds} replies", "points over waiting"]
    rows = [columns, [":--", ":--", *["--:"] * 8]]
    points = Measure("final", "", ratio=False, digits=1)
    for algorithm in dict.fromkeys(algorithm for algorithm, _ in finals):
        waited, before = list[float | None](), list[float]()
        for rule in rules:
            ((lr, runs),) = finals[algorithm, rule].items()
            each = [crossed(run, targets) for run in runs]
            seconds = [[c.seconds if c else None for c in one] for one in zip(*each, strict=True)]
            waited = waited or seconds[-1]
            pairs = zip(seconds[-1], waited, strict=True)
            shares = [own / other for own, other in pairs if own and other]
            tasks = [last.tasks if last else None for *_, last in each]
            ends = [100 * ended(run) for run in runs]
            before = before or ends
            gains = paired([own - other for own, other in zip(ends, before, strict=True)])
            rows.append(
                [
                    f"`{algorithm}`",
                    rule,
                    f"{lr:g}",
                    str(len(runs)),
                    *(reached(pl.Series(one, dtype=pl.Float64), 1, 1) for one in seconds),
                    spread(shares, 2),
                    reached(pl.Series(tasks, dtype=pl.Int64), 1, 0),
                    spread(ends, 1) + " %",
                    "" if before is ends else points.text(gains),
                ]
            )
    return str(markdown(rows))


def holders(name: str) -> str:
    """Return a table of who learns the classes that slow clients hold."""
    found: dict[str, list[dict[str, float]]] = {}
    for row in json.loads((RESULTS / f"slow_holders_{name}.json").read_text()):
        found.setdefault(row["rule"], []).append(row)
    rows = [["a round", "seeds", "seconds", "accuracy", "of 8 and 9"], [":--", *["--:"] * 4]]
    for rule, each in found.items():
        scores = (spread([100 * row[key] for row in each], 1) for key in ("of_all", "of_held"))
        rows.append(
            [
                rule,
                str(len(each)),
                spread([row["seconds"] for row in each], 0),
                *(f"{score} %" for score in scores),
            ]
        )
    return str(markdown(rows))


def draw() -> None:
    """Draw the accuracy of FedAvg by simulated time."""
    finals = raced(packed_runs(RESULTS / "race.jsonl"), tries=False)
    lines = {}
    for rule in rules_of(finals):
        (runs,) = finals["fedavg", rule].values()
        lines[rule] = [[record_of(r) for r in RunDirectory(run).records()] for run in runs]
    with styled():
        figure = plot(lines, metric="test_accuracy", against="time")
        figure.savefig(FIGURE, metadata={"Date": None})


def main() -> int:
    """Do what the arguments ask for; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--from", dest="runs", type=Path, metavar="DIR", help="pack these")
    parser.add_argument("--check", action="store_true", help="write nothing, compare the tables")
    parser.add_argument(
        "--best", type=Path, metavar="DIR", help="print options that choose the best tries in DIR"
    )
    arguments = parser.parse_args()
    if arguments.best is not None:
        runs = [done.parent for done in (arguments.best / "time-race").rglob("done.json")]
        print(*(f"--only={pattern}" for pattern in best(runs)))
        return 0
    if arguments.runs is not None:
        for name in (*TARGETS, "lenet-tries"):
            if (arguments.runs / f"time-{name}").exists():
                pack(arguments.runs / f"time-{name}", RESULTS / f"{name}.jsonl")
    made = {"codecs in seconds": coded()} | {name: race(name) for name in TARGETS}
    made |= {f"slow holders, {name}": holders(name) for name in ("digits", "lenet")}
    if not arguments.check:
        draw()
    return int(fill(PAGES, made, check=arguments.check))


if __name__ == "__main__":
    sys.exit(main())
