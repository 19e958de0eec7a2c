"""Fill in the tables about attacks and about honest replies in docs/ from the packed records.

    python experiments/attacks/publish.py --from runs

packs what runs/attacks-NAME recorded into results/NAME.jsonl before that; of the many runs of
runs/attacks-family it keeps the ends alone, in family.jsonl beside those of other runs.  With
``--check`` it writes nothing and exits 1 if a table is not that of the records.
"""

from __future__ import annotations

import argparse
import json
import os
import runpy
import statistics
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path

from fedlada.experiment.packed import pack, packed_runs
from fedlada.experiment.results.damage import damages
from fedlada.experiment.results.frames import configurations, frame
from fedlada.experiment.results.tuning import LAST
from fedlada.experiment.run.directory import RunDirectory, runs_in
from fedlada.redteam.defences import ABSENT, HONEST
from fedlada.redteam.hostile import colluders_of
from fedlada.server.guard import Guard
from fedlada.training.objective import PERCENT

HERE = Path(os.path.relpath(Path(__file__).parent))
RESULTS, DOCS = HERE / "results", HERE / "../../docs"
PAGES = (DOCS / "attacks.md", DOCS / "security.md")
FAMILY = HERE / "family.jsonl"
WHICH = ("algorithm", "attack", "defence", "seed")
"""What tells the runs of the family from each other."""
EVERYWHERE = ("sign-flip", "fixed-direction", "cancel", "lr-sum-half")
"""The attacks that were tried on every algorithm."""
desk = runpy.run_path(str(HERE / "../desk/publish.py"))
fill, markdown = desk["fill"], desk["markdown"]


def lined(columns: list[str], rows: list[list[str]]) -> str:
    """Return a table of words in the first column and numbers in the others."""
    return str(markdown([columns, [":--", *["--:"] * (len(columns) - 1)], *rows]))


def attacks(file: Path) -> str:
    """Return a table for each number of attackers."""
    found = damages(configurations([file]), frame([file]), PERCENT)
    return "\n\n".join(f"**{one.title}**\n\n{lined(one.columns, one.rows)}" for one in found)


def honest(files: list[Path]) -> str:
    """Return which honest replies the default guard changed, by study and algorithm."""
    replies: Counter[tuple[str, str]] = Counter()
    changed: Counter[tuple[str, str]] = Counter()
    for run in (run for file in files for run in packed_runs(file)):
        config = RunDirectory(run).config
        if config.federation.attack != "none" or config.plan().guard != Guard():
            continue
        study = f"`{run.parent.parent.parent.name}/{run.parent.stem}.toml`", config.title
        for record in RunDirectory(run).records():
            replies[study] += record.get("accepted", config.federation.cohort)
            changed[study] += sum(record["limited"].values())
    rows = [
        [*study, str(count), f"{replies[study]:,}"]
        for study, count in sorted(changed.items())
        if count
    ]
    rest = [study for study in replies if not changed[study]]
    rows.append([f"{len(rest)} others", "", "0", f"{sum(replies[s] for s in rest):,}"])
    return lined(["study", "algorithm", "replies changed", "of"], rows)


def end(run: Path) -> dict[str, object]:
    """Return the accuracy of a run in percent, and how many replies the guard turned away."""
    directory = RunDirectory(run)
    config, records = directory.config, list(directory.records())
    federation = config.federation
    attacked = federation.attack not in (HONEST, ABSENT)
    liars = colluders_of(config.data.clients, federation.attackers) if attacked else frozenset()
    found = [r["metrics"]["test_accuracy"] for r in records if "test_accuracy" in r["metrics"]]
    rejected = [
        int(client)
        for record in records
        for client, why in record["incidents"].items()
        if why in record["rejected"]
    ]
    return {
        "algorithm": config.title,
        "attack": federation.attack,
        "defence": federation.defence,
        "seed": federation.seed,
        "rounds": len(records),
        "accuracy": round(100 * statistics.fmean(found[-LAST:]), 2),
        "liars rejected": sum(client in liars for client in rejected),
        "others rejected": sum(client not in liars for client in rejected),
        "limited": sum(sum(record["limited"].values()) for record in records),
    }


def family() -> str:
    """Return a row for each algorithm: the points that each attack costs under the strict guard."""
    runs = [json.loads(line) for line in FAMILY.read_text().splitlines()]
    scores: dict[str, dict[tuple[str, str], dict[int, float]]] = defaultdict(dict)
    for run in runs:
        place = run["attack"], run["defence"]
        scores[run["algorithm"]].setdefault(place, {})[run["seed"]] = run["accuracy"]
    rows = []
    for name, found in sorted(scores.items()):
        strict = {
            attack: by_seed for (attack, guard), by_seed in found.items() if guard == "strict"
        }
        absent, honest = strict.pop(ABSENT, {}), found.get((HONEST, "default"), {})
        price = less(honest, strict.pop(HONEST, {}))
        lost = {attack: cell(less(absent, by_seed)) for attack, by_seed in strict.items()}
        own = ", ".join(f"`{attack}` {lost[attack]}" for attack in lost if attack not in EVERYWHERE)
        columns = [honest.values(), price, absent.values()]
        tried = [lost.get(attack, "") for attack in EVERYWHERE]
        rows.append([name, str(len(absent)), *map(cell, columns), *tried, own])
    columns = ["algorithm", "seeds", HONEST, "price", ABSENT, *EVERYWHERE, "on its own vectors"]
    tried = [i for i in range(len(columns)) if any(row[i] for row in rows)]
    rows = [[row[i] for i in tried] for row in rows]
    attacked = [run for run in runs if run["attack"] not in (HONEST, ABSENT)]
    rounds, others = (sum(run[key] for run in attacked) for key in ("rounds", "others rejected"))
    return (
        lined([columns[i] for i in tried], rows)
        + f"\n\n{len(attacked)} runs with an attack went through all of their {rounds:,} rounds;"
        + f" {others} replies of honest clients were rejected."
    )


def less(without: dict[int, float], attacked: dict[int, float]) -> list[float]:
    """Return the points lost, by seed."""
    return [without[seed] - score for seed, score in attacked.items() if seed in without]


def cell(values: Iterable[float]) -> str:
    """Return the mean, with one digit."""
    found = list(values)
    return f"{round(statistics.fmean(found), 1) + 0.0:.1f}".replace("-", "−") if found else ""


def main() -> int:
    """Do what the arguments ask for; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--from", dest="runs", type=Path, metavar="DIR", help="pack these")
    parser.add_argument("--check", action="store_true", help="write nothing, compare the tables")
    arguments = parser.parse_args()
    if arguments.runs is not None:
        for directory in arguments.runs.glob("attacks-*"):
            if directory.name == "attacks-family":
                ends = [json.loads(line) for line in FAMILY.read_text().splitlines()]
                ends += [end(run) for run in runs_in(directory) if (run / "done.json").exists()]
                last = {tuple(row[key] for key in WHICH): row for row in ends}
                lines = [json.dumps(last[which]) for which in sorted(last)]
                FAMILY.write_text("\n".join(lines) + "\n")
            else:
                pack(directory, RESULTS / f"{directory.name.removeprefix('attacks-')}.jsonl")
    made = {f"attacks {file.stem}": attacks(file) for file in RESULTS.glob("*.jsonl")}
    made["family"] = family()
    studies = [file for file in HERE.glob("../desk/results/*.jsonl") if file.stem != "branches"]
    made["honest"] = honest([*studies, *RESULTS.glob("*.jsonl")])
    return int(fill(PAGES, made, check=arguments.check))


if __name__ == "__main__":
    sys.exit(main())
