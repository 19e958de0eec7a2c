"""Bring a tournament into this directory: packed records, and tables in documents.

    python experiments/tournament/publish.py --from runs/tournament

packs what the runs recorded into PROBLEM.jsonl where the file of that name says, and fills in the
tables of README.md.  Without ``--from`` it does so with the records that are here; ``--report DIR``
writes the reports, too.  With ``--check`` it writes nothing and exits 1 if a table is not that of
the records.
"""

from __future__ import annotations

import argparse
import os
import runpy
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import polars as pl

from fedlada.experiment.packed import pack
from fedlada.experiment.report.pairs import final_of, holm, interval
from fedlada.experiment.report.runs import Runs
from fedlada.experiment.results.scores import reached, scored, shown
from fedlada.experiment.tournament.file import Tournament, read_tournament
from fedlada.experiment.tournament.page import tournament_page, verdicts
from fedlada.experiment.tournament.play import unpacked
from fedlada.experiment.tournament.stages import TRIES, Course, Verdict, course, mean_ranks
from fedlada.training.objective import PERCENT

HERE = Path(os.path.relpath(Path(__file__).parent))
FILES = ("tournament", "fair", "heterogeneity")
PAGE = HERE / "README.md"
desk = runpy.run_path(str(HERE / "../desk/publish.py"))
fill, markdown = desk["fill"], desk["markdown"]
COMMAND = "fedlada tournament experiments/tournament/{}.toml"
SEED = "federation.seed"

NEAR = 0.0025
"""Validation accuracies that are less apart hang on one image of digits, seen three times."""

Verdicts = dict[str, tuple[Runs, Verdict]]
"""The runs and the verdict of each problem, as `verdicts` returns them."""


def collect(runs: Path, found: Tournament) -> None:
    """Pack all runs of a tournament's directory that have ended a stage."""
    assert found.records is not None
    for problem in sorted(path for path in runs.iterdir() if (path / TRIES).exists()):
        pack(problem, found.records / f"{problem.name}.jsonl")


def recorded(name: str) -> Tournament:
    """Return a tournament with those of its problems that were run."""
    found = read_tournament(HERE / f"{name}.toml")
    assert found.records is not None
    files = {file.stem for file in found.records.glob("*.jsonl")}
    return replace(found, contests=[one for one in found.contests if one.name in files])


def standings(courses: list[Course], told: Verdicts) -> str:
    """Scores in the finals, or in brackets on validation data at the last rung, as Markdown."""
    ranked = mean_ranks([one for one in courses if one.finals])
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
                unclear = " ?" * (contestant in result.unclear)
                row.append(f"**{text}**" if best else text + unclear)
            else:
                row.append(f"({tuned[name][contestant]})")
        lines.append([contestant, *row, f"{sum(places.values()) / len(places):.1f}"])
    return str(markdown(lines))


def against(found: Tournament, told: Verdicts, of: str = "fedavg") -> str:
    """Final scores minus those of one method, by seed, with the verdict and Holm's correction."""
    columns, left = {}, []
    for name, (runs, _) in told.items():
        measure, others = final_of(runs), [v for v in runs.by_score if v != of]
        pairs = {other: interval(runs, other, of, measure) for other in others}
        words = {c: measure.word(pair, runs.scale.sign) for c, pair in pairs.items()}
        columns[name] = {c: f"{measure.text(pair)}, {words[c]}" for c, pair in pairs.items()}
        shown = sum(word in ("ahead", "behind") for word in words.values())
        left.append(f"{name} {holm(pairs.values())} of {shown}")
    names = [c for c in found.contestants if any(c in cells for cells in columns.values())]
    lines = [["", *columns], [":--", *["--:"] * len(columns)]]
    lines += [[c, *(cells.get(c, "") for cells in columns.values())] for c in names]
    holds = "Of the verdicts ahead or behind, these remain after Holm's correction"
    return f"{markdown(lines)}\n\n{holds}: {', '.join(left)}."


def one_over_other(told: Verdicts, one: str, other: str) -> Iterator[list[str]]:
    """Yield a row per problem: the difference of final scores, the verdict, and the pairs won."""
    for name, (runs, _) in told.items():
        measure, sign = final_of(runs), runs.scale.sign
        pair = interval(runs, one, other, measure)
        both = runs.of(one).join(runs.of(other), on=SEED, suffix="_other")
        won = sum(sign * (a - b) > 0 for a, b in both.select("final", "final_other").rows())
        unit = runs.scale.difference
        row = [f"{measure.text(pair)} {unit}", measure.word(pair, sign), f"{won} of {len(both)}"]
        yield [name, *row]


def ratios(found: Tournament, told: Verdicts, of: str = "fedavg") -> str:
    """Rounds to each target over those of one method, run by run of the same seed."""
    columns = {}
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
    return str(markdown(lines))


def guarded(told: Verdicts) -> str:
    """How many honest replies of the finals the guard limited or rejected, by contestant."""
    lines = []
    for name, (runs, _) in told.items():
        sums = runs.ends.group_by("title").agg(pl.col("asked", "limited", "rejected").sum())
        if sums["asked"].null_count() or not sums["asked"][0]:
            lines.append(f"- **{name}**: these records do not say.")
            continue
        touched = sums.filter(pl.col("limited") + pl.col("rejected") > pl.col("asked") / 100)
        each = [
            f"{title} {limited} limited" + (f" and {rejected} rejected" if rejected else "")
            for title, _, limited, rejected in touched.sort("limited", descending=True).rows()
        ]
        rest = max(sums.join(touched, on="title", how="anti")["limited"], default=0)
        each.append(f"{'others' if each else 'all'} at most {rest}")
        lines.append(f"- **{name}**, of {sums['asked'][0]:,} replies each: {', '.join(each)}.")
    return "\n".join(lines)


def edges(one: Course) -> str:
    """Which chosen settings are at the edge of those tried, and how many lead by little."""
    at, stage = one.edges() or "none", one.rungs[-1]
    scores = stage.scores(one.last)
    if stage.objective().scale is not PERCENT:
        return f"- **{one.contest.name}**: {at}"
    best = [sorted((scores[run] or 0.0 for run in by), reverse=True) for by in stage.by.values()]
    near = sum(len(each) > 1 and each[0] - each[1] < NEAR for each in best)
    lead = f"{near} of {len(best)} lead the next lr by less than {100 * NEAR:g} points"
    return f"- **{one.contest.name}**: {at}. {lead}"


def sentences(told: Verdicts) -> str:
    """Who won each problem."""
    return "\n".join(f"- **{name}**: {result.sentence}" for name, (_, result) in told.items())


def main() -> int:
    """Do what the arguments ask for; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--from", dest="runs", type=Path, metavar="DIR", help="pack these")
    parser.add_argument("--report", type=Path, metavar="DIR", help="write the reports to here")
    parser.add_argument("--check", action="store_true", help="write nothing, compare the tables")
    arguments = parser.parse_args()
    made, pairs = dict[str, str](), list[list[str]]()
    for name in FILES:
        if arguments.runs is not None and recorded(name).name == arguments.runs.name:
            collect(arguments.runs, recorded(name))
        found = recorded(name)
        with tempfile.TemporaryDirectory() as base:
            unpacked(found, Path(base))
            courses = [course(contest, found, Path(base)) for contest in found.contests]
            told = verdicts(courses, found.contestants)
            pairs += one_over_other(told, "fedlada-without-m", "fedlada")
            made |= {
                name: standings(courses, told),
                f"{name} against fedavg": against(found, told),
                f"{name} ratios": ratios(found, told),
                f"{name} guard": guarded(told),
                f"{name} winners": sentences(told),
                f"{name} edges": "\n".join(map(edges, courses)),
            }
            if arguments.report is not None:
                file, out = HERE / f"{name}.toml", arguments.report / name
                command = COMMAND.format(name)
                for written in tournament_page(found, courses, file=file, out=out, command=command):
                    print("written", written)
    head = ["problem", "difference of the final score", "without m is", "pairs won"]
    made["without m"] = str(markdown([head, [":--", "--:", ":--", "--:"], *pairs]))
    return int(fill([PAGE], made, check=arguments.check))


if __name__ == "__main__":
    sys.exit(main())
