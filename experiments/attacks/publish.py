"""Fill in the tables about attacks and about honest replies in docs/ from the packed records.

    python experiments/attacks/publish.py --from runs

packs what runs/attacks-NAME recorded into results/NAME.jsonl before that.  With ``--check`` it
writes nothing and exits 1 if a table is not that of the records.
"""

from __future__ import annotations

import argparse
import os
import runpy
import sys
from collections import Counter
from pathlib import Path

from fedlada.experiment.packed import pack, packed_runs
from fedlada.experiment.results.damage import damages
from fedlada.experiment.results.frames import configurations, frame
from fedlada.experiment.run.directory import RunDirectory
from fedlada.server.guard import Guard
from fedlada.training.objective import PERCENT

HERE = Path(os.path.relpath(Path(__file__).parent))
RESULTS, DOCS = HERE / "results", HERE / "../../docs"
PAGES = (DOCS / "attacks.md", DOCS / "security.md")
desk = runpy.run_path(str(HERE / "../desk/publish.py"))
filled, markdown = desk["filled"], desk["markdown"]


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


def main() -> int:
    """Do what the arguments ask for; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--from", dest="runs", type=Path, metavar="DIR", help="pack these")
    parser.add_argument("--check", action="store_true", help="write nothing, compare the tables")
    arguments = parser.parse_args()
    if arguments.runs is not None:
        for directory in arguments.runs.glob("attacks-*"):
            pack(directory, RESULTS / f"{directory.name.removeprefix('attacks-')}.jsonl")
    made = {f"attacks {file.stem}": attacks(file) for file in RESULTS.glob("*.jsonl")}
    studies = [file for file in HERE.glob("../desk/results/*.jsonl") if file.stem != "branches"]
    made["honest"] = honest([*studies, *RESULTS.glob("*.jsonl")])
    texts = {page: filled(page.read_text(), made) for page in PAGES}
    if arguments.check:
        same = all(page.read_text() == text for page, text in texts.items())
        print("the tables are those of the records" if same else "run this without --check")
        return 0 if same else 1
    for page, text in texts.items():
        page.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
