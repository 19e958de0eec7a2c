"""What coding costs, by branches of one run: a trunk without a codec, then a branch per codec.

    python experiments/desk/branches.py experiments/desk/branches.toml --out branches.jsonl

Whole runs with and without a codec diverge in their first rounds, and where each ends is largely
chance.  A branch begins with the server's state after ``--at`` rounds, samples the same clients and
batches as its siblings, and differs from them by its codec.  The file is a sweep over codecs and
seeds; one of the codecs is ``exact``.  A line of the output is a branch: its accuracy and its
clients' training loss over the last ``--last`` rounds.  Lines that are there are kept, so give
other rounds another ``--out``.

    python experiments/desk/branches.py --table experiments/desk/results/branches.jsonl

prints how the branches differ from the exact one of their seed, as a table.
"""

from __future__ import annotations

import argparse
import copy
import json
from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from rich.progress import track

from fedlada import RoundRecord, simulate
from fedlada.engines import ServerState
from fedlada.experiment.config.cells import cells
from fedlada.experiment.config.experiment import Experiment
from fedlada.experiment.results.scores import spread
from fedlada.experiment.run.directory import provenance
from fedlada.experiment.run.problem import Problem, build

Row = dict[str, Any]


def main(arguments: Sequence[str] | None = None) -> None:
    """Compute the branches that are missing, or print the table of those that are there."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", type=Path, nargs="?", help="a sweep over codecs and seeds")
    parser.add_argument("--at", type=int, default=60, help="rounds of the trunk")
    parser.add_argument("--rounds", type=int, default=40, help="rounds of a branch")
    parser.add_argument("--last", type=int, default=20, help="rounds that are averaged")
    parser.add_argument("--out", type=Path, default=Path("branches.jsonl"))
    parser.add_argument("--table", type=Path, metavar="JSONL", help="print a table and stop")
    given = parser.parse_args(arguments)
    if given.table is not None:
        print(table(rows_in(given.table)))
        return
    if given.file is None:
        parser.error("name a sweep, such as experiments/desk/branches.toml, or --table")
    trees: dict[tuple[str, int], list[Experiment]] = {}
    for config in cells(given.file).values():
        trees.setdefault((config.algorithm, config.federation.seed), []).append(config)
    for configs in trees.values():
        grow(configs, given.out, at=given.at, rounds=given.rounds, last=given.last)


def grow(configs: list[Experiment], out: Path, *, at: int, rounds: int, last: int) -> None:
    """Append the missing branches of one algorithm and seed."""
    done = {(*tree(row), row["codec"]) for row in rows_in(out)}
    missing = [
        config
        for config in configs
        if (config.algorithm, config.federation.seed, config.federation.codec) not in done
    ]
    if not missing:
        return
    problem = build(missing[0])
    _, state = run(missing[0], problem, None, codec="exact", rounds=at)
    for config in missing:
        codec = config.federation.codec
        records, _ = run(config, problem, state, codec=codec, rounds=at + rounds)
        row = {
            "algorithm": config.algorithm,
            "codec": codec,
            "seed": config.federation.seed,
            "at": at,
            "rounds": rounds,
            "last": last,
            **summary(records[-last:]),
            **provenance(threads=1, device="cpu"),
        }
        with out.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")


def run(
    config: Experiment, problem: Problem, state: ServerState | None, *, codec: str, rounds: int
) -> tuple[list[RoundRecord], ServerState]:
    """Go on from a copy of the state; return the records and the state at the end."""
    simulation = simulate(
        copy.deepcopy(problem.model),
        problem.clients,
        train=problem.train,
        evaluate=problem.evaluate,
        state=copy.deepcopy(state),
        **{**config.plan().settings(), "codec": codec, "rounds": rounds},
    )
    left = rounds - simulation.state.round
    name = f"{config.algorithm}, seed {config.federation.seed}: {codec}"
    return list(track(simulation, description=name, total=left)), simulation.state


def summary(records: list[RoundRecord]) -> Row:
    """Return the means of what the table shows."""
    tested = [record.metrics["test_accuracy"] for record in records if record.metrics]
    return {
        "test_accuracy": mean(tested),
        "train_loss": mean(record.client_metrics["loss"] for record in records),
        "bytes_up": mean(record.bytes_up for record in records),
        "bytes_down": mean(record.bytes_down for record in records),
    }


def rows_in(path: Path) -> list[Row]:
    """Return the branches that a file has."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def tree(row: Row) -> tuple[str, int]:
    """Return what the branches of one trunk have in common."""
    return row["algorithm"], row["seed"]


def table(rows: list[Row]) -> str:
    """Return a table of the differences to the exact branch of the same trunk."""
    exact = {tree(row): row for row in rows if row["codec"] == "exact"}
    kinds: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        if row["codec"] != "exact" and tree(row) in exact:
            kinds.setdefault((row["algorithm"], row["codec"]), []).append(row)
    lines = [
        "|  | codec | seeds | accuracy over `exact`, points | training loss over `exact` |",
        "| :-- | :-- | --: | --: | --: |",
    ]
    for (name, codec), own in kinds.items():
        points, losses = (
            [factor * (row[key] - exact[tree(row)][key]) for row in own]
            for key, factor in (("test_accuracy", 100), ("train_loss", 1))
        )
        told = [name, codec.replace("|", "\\|"), str(len(own))]
        lines.append(f"| {' | '.join((*told, spread(points, 2), spread(losses, 4)))} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
