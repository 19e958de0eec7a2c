"""Fill in the tables about simulated time in docs/, and draw its figure, from the packed records.

    python experiments/time/publish.py --from runs

packs what runs/time-race recorded into results/race.jsonl before that.  With ``--check`` it writes
nothing and exits 1 if a table is not that of the records.
"""

from __future__ import annotations

import argparse
import os
import runpy
import sys
from pathlib import Path

import polars as pl

from fedlada.engines import Devices
from fedlada.engines.schedule import schedule
from fedlada.engines.timed import Timetable, work_of
from fedlada.experiment.packed import pack, packed_runs
from fedlada.experiment.report.figures import styled
from fedlada.experiment.results.frames import frame, summary
from fedlada.experiment.results.scores import reached
from fedlada.experiment.run.directory import RunDirectory
from fedlada.models import LeNet
from fedlada.protocol.codecs import Codecs
from fedlada.results.plot import plot
from fedlada.server.record import record_of
from fedlada.training.local import LocalTraining

HERE = Path(os.path.relpath(Path(__file__).parent))
RESULTS, DOCS = HERE / "results", HERE / "../../docs"
RACE, DESK = RESULTS / "race.jsonl", HERE / "../desk/results"
FIGURE = DOCS / "images/time.svg"
PAGES = (DOCS / "bytes.md", DOCS / "time.md")
desk = runpy.run_path(str(HERE / "../desk/publish.py"))
filled, markdown = desk["filled"], desk["markdown"]

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


RULES = {(20, None): "wait for 20", (26, 20): "the first 20 of 26", (20, 5): "5 of 20 under way"}
"""The rules of race.toml by the cohort and the number of replies that close a round."""


def raced() -> dict[str, dict[str, list[Path]]]:
    """Return the runs of race.toml by algorithm and rule, of algorithms that ran with each rule."""
    found: dict[str, dict[str, list[Path]]] = {}
    for run in packed_runs(RACE):
        config = RunDirectory(run).config
        rule = RULES[config.federation.cohort, config.federation.close_after]
        found.setdefault(config.title, {}).setdefault(rule, []).append(run)
    return {name: rules for name, rules in found.items() if len(rules) == len(RULES)}


def race() -> str:
    """Return a table of the seconds, the replies and the tasks to each target."""
    columns = ["algorithm", "a round", "seeds", "seconds to 85 %", "seconds to 90 %"]
    rows = [[*columns, "tasks to 90 %", "accuracy after 600 replies"], [":--", ":--", *["--:"] * 5]]
    for name, rules in raced().items():
        for rule in RULES.values():
            data = frame(rules[rule])
            ends = summary(data, (0.85, 0.9), last=3)
            tasks = [
                data.filter(pl.col("directory") == r["directory"])["asked"][: r["rounds_to_0.9"]]
                for r in ends.iter_rows(named=True)
            ]
            rows.append(
                [
                    f"`{name}`",
                    rule,
                    str(len(ends)),
                    *(reached(ends[f"simulated_to_{t}"], 1, 1) for t in ("0.85", "0.9")),
                    reached(pl.Series([asked.sum() for asked in tasks]), 1, 0),
                    reached(ends["final"], 100, 1) + " %",
                ]
            )
    return str(markdown(rows))


def draw() -> None:
    """Draw the accuracy of FedAvg by simulated time."""
    lines = {
        rule: [[record_of(record) for record in RunDirectory(run).records()] for run in runs]
        for rule, runs in raced()["fedavg"].items()
    }
    with styled():
        figure = plot(lines, metric="test_accuracy", against="time")
        figure.savefig(FIGURE, metadata={"Date": None})


def main() -> int:
    """Do what the arguments ask for; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--from", dest="runs", type=Path, metavar="DIR", help="pack these")
    parser.add_argument("--check", action="store_true", help="write nothing, compare the tables")
    arguments = parser.parse_args()
    if arguments.runs is not None:
        pack(arguments.runs / "time-race", RACE)
    made = {"codecs in seconds": coded(), "race": race()}
    texts = {page: filled(page.read_text(), made) for page in PAGES}
    if arguments.check:
        same = all(page.read_text() == text for page, text in texts.items())
        print("the tables are those of the records" if same else "run this without --check")
        return 0 if same else 1
    for page, text in texts.items():
        page.write_text(text)
    draw()
    return 0


if __name__ == "__main__":
    sys.exit(main())
