"""Bring finished runs into this directory: packed records, tables in documents, figures.

    python experiments/desk/publish.py --from runs

packs what runs/desk-NAME recorded into results/NAME.jsonl, fills in the tables of README.md, each
between two comments, and draws the figures of README.md.  Without ``--from`` it does so with the
records that are here; ``--reports DIR`` keeps the report on each question that a figure is taken
from.  With ``--check`` it writes nothing and exits 1 if a table is not that of the records.

    python experiments/desk/publish.py --figure

draws docs/images/desk.svg alone: the methods of the main comparison that have three seeds.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import cache
from pathlib import Path

import polars as pl

from fedlada.experiment.packed import pack, packed_runs
from fedlada.experiment.report.report import report
from fedlada.experiment.results.frames import configurations, frame, summary
from fedlada.experiment.results.scores import reached, span, spread

HERE = Path(os.path.relpath(Path(__file__).parent))  # reports tell what they were made of
RESULTS, FIGURES, DOCS = HERE / "results", HERE / "figures", HERE / "../../docs"
PAGES = (HERE / "README.md",)
FIGURE = DOCS / "images/desk.svg"
SEED, CODEC = "federation.seed", "federation.codec"
LAST = 5  # evaluations over which accuracy and consistency are averaged: single ones are noisy


@dataclass(frozen=True)
class Question:
    """Which of the runs answer it, up to which round, and what its table shows."""

    name: str
    runs: tuple[str, ...]
    rounds: int | None = None
    targets: tuple[float, ...] = ()
    megabytes: bool = False
    consistency: bool = False

    @property
    def figure(self) -> str:
        """The figure of its report that README.md shows, if any."""
        by_rounds = "accuracy-bytes" if self.megabytes else "accuracy-rounds"
        return "drift" if self.name == "consistency" else by_rounds

    def directories(self) -> list[Path]:
        """The runs that have been recorded so far."""
        return [run for pattern in self.runs for run in recorded(pattern)]


def recorded(pattern: str) -> list[Path]:
    """Return the packed runs whose sweep and name match, as ``main/fedavg-*``."""
    sweeps, _, names = pattern.partition("/")
    files = sorted(RESULTS.glob(f"{sweeps}.jsonl"))
    return [run for file in files for run in packed_runs(file) if fnmatch(run.name, names)]


FEDLADA = "main/fedlada-lr*-seed0"
GRID = ("fedavg", "fedcm", "fedadam", "localadam", "fedlada")
QUESTIONS = (
    Question("main", ("main/*",), targets=(0.5, 0.55, 0.58)),
    Question("communication", ("main/*",), targets=(0.5, 0.55, 0.58), megabytes=True),
    Question(
        "bytes",
        ("main/fedlada-lr*", "main/fedcm-*", "main/fedavg-*", "bytes/*", "momentum/*rows*"),
        targets=(0.5, 0.55, 0.58),
        megabytes=True,
    ),
    Question(
        "grid",
        (*(f"main/{name}-lr*-seed0" for name in GRID), "grid/*"),
        targets=(0.5, 0.55, 0.58),
    ),
    Question("alpha", (FEDLADA, "alpha/*"), targets=(0.5, 0.55, 0.6), consistency=True),
    Question("k", (FEDLADA, "k/*"), targets=(0.5, 0.55, 0.6)),
    Question("participation", (FEDLADA, "participation/*"), targets=(0.5, 0.55, 0.6)),
    Question("smooth", ("smooth/*",), rounds=80, targets=(0.4, 0.5, 0.55)),
    Question(
        "scaffold",
        ("main/fedavg-*-seed0", "main/scaffold-*-seed0", "scaffold/*"),
        targets=(0.5, 0.55, 0.58),
    ),
    Question(
        "fedadam",
        ("main/fedadam-*-seed0", "main/fedcm-*-seed0", "grid/fedadam-*", "fedadam/*"),
        targets=(0.4, 0.5, 0.55),
    ),
    Question("consistency", ("main/*",), consistency=True),
    Question(
        "why",
        ("main/fedlada-*-seed0", "main/fedcm-*-seed0", "why/fedlada*", "why/fedcm*lr0.1*"),
        targets=(0.5, 0.55, 0.58),
    ),
    Question(
        "decay",
        ("main/fedcm-*-seed0", FEDLADA, "main/fedavg-*-seed0", "decay/*"),
        targets=(0.5, 0.55, 0.58),
    ),
    Question("cifar100", ("cifar100/*",), targets=(0.1, 0.15, 0.2)),
    Question(
        "bytes100",
        ("cifar100/fed*", "bytes100/*", "direction/*", "momentum100/*"),
        targets=(0.1, 0.15, 0.2),
        megabytes=True,
    ),
    Question(
        "muon",
        (FEDLADA, "main/fedcm-*-seed0", "main/fedavg-*-seed0", "muon/*", "momentum/*"),
        targets=(0.5, 0.55, 0.58),
    ),
    Question("bytes_resnet", ("bytes_resnet/*",), targets=(0.15, 0.2, 0.25), megabytes=True),
    Question("reference", ("main/fedavg-*-seed0", FEDLADA, "reference/*")),
    Question("headline", ("headline/*", "simulator*/*"), targets=(0.4, 0.5, 0.6, 0.7)),
)


@cache
def ended(question: Question) -> pl.DataFrame:
    """One row per run: what it cost to each target, and its means over the last rounds."""
    data = frame(question.directories(), rounds=question.rounds)
    late = data.group_by("directory", maintain_order=True).agg(
        (100 * pl.col("accuracy").drop_nulls().tail(LAST).mean()).alias("late"),
        pl.col("consistency").tail(LAST).mean().alias("consistency"),
    )
    return summary(data, question.targets).join(late, on="directory", maintain_order="left")


def table(question: Question) -> str:
    """Variants by accuracy, mean and standard deviation over seeds, as Markdown."""
    if not question.directories():
        return "Not run yet."
    ends = ended(question)
    unit = "MB" if question.megabytes else "rounds"
    scale, column = (1e-6, "bytes") if question.megabytes else (1, "rounds")
    titles = ["", "seeds", "rounds", "accuracy, %"]
    titles += [f"{unit} to {100 * target:g} %" for target in question.targets]
    titles += ["consistency"] if question.consistency else []
    groups = [group for _, group in ends.group_by("variant", maintain_order=True)]
    groups.sort(key=lambda group: -float(group["late"].mean() or 0))  # type: ignore[arg-type]
    rows = []
    for group in groups:
        row = [str(group["variant"][0]), str(len(group)), span(group["rounds"])]
        row.append(spread(group["late"].to_list(), 1))
        row += [reached(group[f"{column}_to_{t:g}"], scale, 0) for t in question.targets]
        row += [spread(group["consistency"].to_list(), 3)] if question.consistency else []
        rows.append(row)
    return markdown([titles, [":--", *["--:"] * (len(titles) - 1)], *rows])


def tuned(sweep: str) -> str:
    """Every lr that was tried, with its validation accuracy, the best in bold, as Markdown."""
    directories = recorded(f"{sweep}/*")
    if not directories:
        return "Not run yet."
    scores = (
        frame(directories)
        .group_by("directory")
        .agg(100 * pl.col("accuracy").tail(LAST).mean())
        .rows()
    )
    tries: dict[tuple[str, float], dict[float, float]] = {}
    configs = configurations(directories)
    for directory, accuracy in scores:
        config = configs[Path(directory)]
        lr, decay = (float(str(config.settings[key])) for key in ("lr", "weight_decay"))
        tries.setdefault((str(config.algorithm), decay), {})[lr] = accuracy
    lines = ["| | weight decay | lr: validation accuracy, % |", "| :-- | --: | :-- |"]
    for (algorithm, decay), found in sorted(tries.items()):
        texts = {lr: f"{lr:g}: {accuracy:.1f}" for lr, accuracy in sorted(found.items())}
        best = max(found, key=found.__getitem__)
        texts[best] = f"**{texts[best]}**"
        lines.append(f"| {algorithm} | {decay:g} | {', '.join(texts.values())} |")
    return "\n".join(lines)


def ratios(question: Question, of: str = "fedlada") -> str:
    """Rounds of one method over those of the others, run by run of the same seed, as Markdown."""
    directories = question.directories()
    if not directories:
        return "Not run yet."
    ends = summary(frame(directories), question.targets)
    own = ends.filter(pl.col("variant") == of)
    titles = [f"{of}'s rounds over those of", *(f"to {100 * t:g} %" for t in question.targets)]
    lines = [titles, [":--", *["--:"] * len(question.targets)]]
    for (other,), group in ends.group_by("variant", maintain_order=True):
        if other != of:
            pairs = own.join(group, on=SEED, suffix="_other")
            row = [
                pairs.select(pl.col(c) / pl.col(f"{c}_other")).to_series()
                for c in (f"rounds_to_{t:g}" for t in question.targets)
            ]
            lines.append([str(other), *(reached(values, 1, 2) for values in row)])
    return markdown(lines)


def prices(question: Question) -> str:
    """What a codec takes from accuracy and leaves of the bytes, run by run of the same seed."""
    ends = ended(question) if question.directories() else pl.DataFrame()
    if CODEC not in ends.columns:  # only what differs has a column
        return "Not run yet."
    ends = ends.sort("title", CODEC)
    code, columns = pl.col(CODEC), [f"bytes_to_{t:g}" for t in question.targets[1:]]
    exact, fedavg = ends.filter(code == "exact"), ends.filter(pl.col("title") == "fedavg")
    titles = ["", "codec", "seeds", "accuracy over `exact`, points"]
    titles += [f"MB to {100 * t:g} % over `fedavg` `exact`" for t in question.targets[1:]]
    titles += [f"over `fedavg` with that codec, to {100 * question.targets[-1]:g} %"]
    lines = [titles, [":--", ":--", *["--:"] * (len(titles) - 2)]]
    for (title, codec), group in ends.group_by("title", CODEC, maintain_order=True):
        own = group.join(exact.filter(pl.col("title") == title), on=SEED, suffix="_exact")
        base = group.join(fedavg.filter(code == "exact"), on=SEED, suffix="_of")
        same = group.join(fedavg.filter(code == codec), on=SEED, suffix="_of")
        loss = own.select(pl.col("late") - pl.col("late_exact")).to_series().to_list()
        row = [str(title), str(codec), str(len(group))]
        row += ["" if codec == "exact" else f"{spread(loss, 2)} ({len(loss)})"]
        row += [reached(base[c] / base[f"{c}_of"], 1, 2) for c in columns]
        c = columns[-1]
        row += [reached(same[c] / same[f"{c}_of"], 1, 2) if len(same) else "–"]
        lines.append(row)
    return markdown(lines)


def markdown(lines: list[list[str]]) -> str:
    """Lines of cells as a table."""
    escaped = ([cell.replace("|", "\\|") for cell in line] for line in lines)
    return "\n".join(f"| {' | '.join(line)} |" for line in escaped)


def tables() -> dict[str, str]:
    """All tables by name."""
    tunings = [path.stem for path in HERE.glob("tune*.toml")]
    made = {"ratios": ratios(QUESTIONS[0])} | {name: tuned(name) for name in tunings}
    coded = [question for question in QUESTIONS if question.name.startswith("bytes")]
    made |= {f"prices {question.name}": prices(question) for question in coded}
    return made | {question.name: table(question) for question in QUESTIONS}


def filled(text: str, made: dict[str, str]) -> str:
    """A document with the tables of the records."""
    for name, content in made.items():
        begin, end = f"<!-- table {name} -->", "<!-- end -->"
        if begin in text:
            before, _, rest = text.partition(begin)
            _, _, after = rest.partition(end)
            text = f"{before}{begin}\n{content}\n{end}{after}"
    return text


def fill(pages: Iterable[Path], made: dict[str, str], *, check: bool) -> int:
    """Write the tables of the records into documents, or only compare them; the exit code."""
    texts = {page: filled(page.read_text(), made) for page in pages}
    if check:
        same = all(page.read_text() == text for page, text in texts.items())
        print("the tables are those of the records" if same else "run this without --check")
        return 0 if same else 1
    for page, text in texts.items():
        page.write_text(text)
    return 0


def draw(seeds: int = 3) -> None:
    """Draw accuracy by rounds of the methods that were run with so many seeds."""
    directories = QUESTIONS[0].directories()
    counts = frame(directories).group_by("variant").agg(pl.col("directory").unique())
    chosen = [path for _, paths in counts.rows() if len(paths) == seeds for path in paths]
    with tempfile.TemporaryDirectory() as out:
        written = report(sorted(map(Path, chosen)), out=Path(out), targets=(0.55, 0.58))
        FIGURE.write_text((written / "figures/accuracy-rounds.svg").read_text())
    print("written", FIGURE)


def collect(runs: Path) -> None:
    """Pack what the runs recorded that have ended."""
    for directory in sorted({ended.parent.parent for ended in runs.glob("desk-*/*/done.json")}):
        pack(directory, RESULTS / f"{directory.name.removeprefix('desk-')}.jsonl")


def figures(reports: Path, only: str | None) -> None:
    """Write the report on each question, and keep the figures that README.md shows."""
    text = (HERE / "README.md").read_text()
    shown = [question for question in QUESTIONS if f"(figures/{question.name}.svg)" in text]
    for question in shown:
        if question.directories() and only in (None, question.name):
            out = report(
                question.directories(),
                out=reports / question.name,
                targets=question.targets or None,
                rounds=question.rounds,
            )
            figure = FIGURES / f"{question.name}.svg"
            figure.write_text((out / f"figures/{question.figure}.svg").read_text())
            print("written", figure, flush=True)


def main() -> int:
    """Do what the arguments ask for; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--from", dest="runs", type=Path, metavar="DIR", help="pack these")
    parser.add_argument("--reports", type=Path, metavar="DIR", help="keep the reports here")
    parser.add_argument("--check", action="store_true", help="write nothing, compare the tables")
    parser.add_argument("--figure", action="store_true", help="draw docs/images/desk.svg alone")
    parser.add_argument("--only", metavar="NAME", help="draw only this question's figure")
    arguments = parser.parse_args()
    if arguments.check:
        return fill(PAGES, tables(), check=True)
    if arguments.figure:
        draw()
        return 0
    if arguments.runs is not None:
        collect(arguments.runs)
    fill(PAGES, tables(), check=False)
    with tempfile.TemporaryDirectory() as scratch:
        figures(arguments.reports or Path(scratch), arguments.only)
    return 0


if __name__ == "__main__":
    sys.exit(main())
