"""Bring a tournament into this directory: a line per run, the report, tables in documents.

    python experiments/tournament/publish.py --from runs/tournament

packs what the runs recorded into results/PROBLEM.jsonl, writes report/, and fills in the tables of
docs/choosing.md.  Without ``--from`` it does so with the records that are here; with ``--check``
it writes nothing and exits 1 if a table is not that of the records.

    python experiments/tournament/publish.py --to runs/tournament

unpacks the records, so that `fedlada tournament ... --out runs/tournament` goes on after the last
stage that is whole.
"""

from __future__ import annotations

import argparse
import json
import os
import runpy
import sys
import tempfile
from pathlib import Path
from typing import Any

import polars as pl

from fedlada.experiment.results.comparison import reached, scored
from fedlada.experiment.results.order import shown
from fedlada.experiment.run.directory import RunDirectory
from fedlada.experiment.tournament.bracket import FINALS, TRIES
from fedlada.experiment.tournament.file import Tournament, read_tournament
from fedlada.experiment.tournament.page import tournament_page, verdicts
from fedlada.experiment.tournament.verdict import Course, course, mean_ranks

HERE = Path(os.path.relpath(Path(__file__).parent))
FILE, RESULTS, REPORT = HERE / "tournament.toml", HERE / "results", HERE / "report"
PAGES = (HERE / "README.md", HERE / "../../docs/choosing.md")
filled = runpy.run_path(str(HERE / "../desk/publish.py"))["filled"]
KEPT = ("bytes_down", "bytes_up", "applied", "seconds", "drift", "consistency")
COMMAND = "fedlada tournament experiments/tournament/tournament.toml"
SEED = "federation.seed"


def packed(run: Path) -> dict[str, Any]:
    """Return a run as one object: configuration, machine, and the numbers of its rounds."""
    own = RunDirectory(run)
    records, done = list(own.records()), json.loads((run / "done.json").read_text())
    return {
        "run": f"{run.parent.name}/{run.name}",
        "config": own.config_file.read_text(),
        "machine": done["machine"],
        "versions": done["versions"],
        "rounds": {key: _once([_short(r.get(key)) for r in records]) for key in KEPT},
        "metrics": {
            str(r["round"]): {key: _short(value, 6) for key, value in r["metrics"].items()}
            for r in records
            if r["metrics"]
        },
    }


def unpack(line: dict[str, Any], base: Path) -> None:
    """Write the directory of a run, without its checkpoints."""
    run = base / line["run"]
    run.mkdir(parents=True, exist_ok=True)
    (run / "config.toml").write_text(line["config"])
    number, rounds = len(line["rounds"]["seconds"]), line["rounds"]
    with (run / "records.jsonl").open("w") as file:
        for at in range(number):
            record = {"round": at + 1}
            record |= {k: v[at] if isinstance(v, list) else v for k, v in rounds.items()}
            record |= {"metrics": line["metrics"].get(str(at + 1), {})}
            record |= {"failures": {}, "rejected": {}, "limited": {}}
            file.write(json.dumps(record) + "\n")
    done = {"rounds": number, "command": COMMAND.split()}
    done |= {"machine": line["machine"], "versions": line["versions"]}
    (run / "done.json").write_text(json.dumps(done))


def collect(runs: Path) -> None:
    """Pack all runs of a tournament's directory that have ended a stage."""
    RESULTS.mkdir(exist_ok=True)
    for problem in sorted(path for path in runs.iterdir() if (path / TRIES).exists()):
        ended = [p.parent for part in (TRIES, FINALS) for p in problem.glob(f"{part}/*/done.json")]
        lines = [json.dumps(packed(run), separators=(",", ":")) for run in sorted(ended)]
        text = "\n".join(lines).replace(str(runs.resolve().parent), ".")
        (RESULTS / f"{problem.name}.jsonl").write_text(text + "\n")


def restore(base: Path) -> None:
    """Unpack the records that are here."""
    for file in sorted(RESULTS.glob("*.jsonl")):
        for line in file.read_text().splitlines():
            unpack(json.loads(line), base / file.stem)


def standings(found: Tournament, courses: list[Course]) -> str:
    """Scores in the finals, or in brackets on validation data at the last rung, as Markdown."""
    told = verdicts(courses, found.contestants)
    ranked = mean_ranks({name: runs for name, (runs, _) in told.items()}, found.contestants)
    names = [one.contest.name for one in courses if one.contest.name in told]
    lines = [["", *names, "mean rank"], [":--", *["--:"] * (len(names) + 1)]]
    tuned = {one.contest.name: one.leading() for one in courses}
    for contestant, places in ranked.items():
        row = []
        for name in names:
            runs, result = told[name]
            if contestant in runs.variants:
                text = scored(runs.of(contestant)["final"], runs.scale)
                best = contestant in (result.winner, *result.level)
                row.append(f"**{text}**" if best else text)
            else:
                row.append(f"({tuned[name][contestant]})")
        lines.append([contestant, *row, f"{sum(places.values()) / len(places):.1f}"])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def ratios(found: Tournament, courses: list[Course], of: str = "fedavg") -> str:
    """Rounds to each target over those of one method, run by run of the same seed."""
    told, columns = verdicts(courses, found.contestants), {}
    for name, (runs, _) in told.items():
        own = runs.of(of)
        for target in runs.targets:
            c = f"rounds_to_{target:g}"
            cells = {}
            for contestant in runs.variants:
                pairs = own.join(runs.of(contestant), on=SEED, suffix="_other")
                share = pairs.select(pl.col(f"{c}_other") / pl.col(c)).to_series()
                cells[contestant] = reached(share, 1, 2) if own[c].count() else "–"
            columns[f"{name}, {shown(target, runs.scale)}"] = cells
    names = [c for c in found.contestants if any(c in cells for cells in columns.values())]
    lines = [["", *columns], [":--", *["--:"] * len(columns)]]
    lines += [[c, *(cells.get(c, "") for cells in columns.values())] for c in names]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def sentences(found: Tournament, courses: list[Course]) -> str:
    """Who won each problem."""
    told = verdicts(courses, found.contestants)
    return "\n".join(f"- **{name}**: {result.sentence()}" for name, (_, result) in told.items())


def main() -> int:
    """Do what the arguments ask for; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--from", dest="runs", type=Path, metavar="DIR", help="pack these")
    parser.add_argument("--to", type=Path, metavar="DIR", help="unpack to here, and no more")
    parser.add_argument("--check", action="store_true", help="write nothing, compare the tables")
    arguments = parser.parse_args()
    if arguments.to is not None:
        restore(arguments.to)
        return 0
    if arguments.runs is not None:
        collect(arguments.runs)
    found = read_tournament(FILE)
    with tempfile.TemporaryDirectory() as base:
        restore(Path(base))
        courses = [course(contest, found, Path(base)) for contest in found.contests]
        made = {
            "tournament": standings(found, courses),
            "tournament ratios": ratios(found, courses),
            "tournament winners": sentences(found, courses),
        }
        pages = {page: filled(page.read_text(), made) for page in PAGES}
        if arguments.check:
            same = all(text == page.read_text() for page, text in pages.items())
            print("documents have the tables of the records" if same else "run it without --check")
            return 0 if same else 1
        for page, text in pages.items():
            page.write_text(text)
        for old in REPORT.rglob("*.svg"):
            old.unlink()
        for file in tournament_page(found, courses, file=FILE, out=REPORT, command=COMMAND):
            print("written", file)
        (REPORT / "report.html").unlink()  # the same as Markdown, which is smaller
    return 0


def _once(values: list[Any]) -> Any:
    """Return the value of a list whose values are all equal, and any other list as it is."""
    return values[0] if len({*values}) == 1 < len(values) else values


def _short(value: Any, digits: int = 4) -> Any:
    """Return a number with so many digits."""
    return float(f"{value:.{digits}g}") if isinstance(value, float) else value


if __name__ == "__main__":
    sys.exit(main())
