"""The tables of a report: scores, costs, failed replies, settings, and the origin of the runs."""

from __future__ import annotations

import json
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

import polars as pl

from ...redteam.attacks import ATTACKS
from ..config.experiment import Experiment
from ..config.keys import flatten
from ..packed import file_text
from ..results.damage import damages
from ..results.frames import SEEDS
from ..results.scores import capital, reached, scored, span, spread
from ..run.directory import RunDirectory
from .page import Block, Code, Points, Table, Text
from .runs import Runs

__all__ = ["attacks", "clients", "costs", "incidents", "provenance", "scores", "settings"]

KINDS = {"rejected": "rejected", "limited": "accepted, but limited", "failures": "no reply"}
OMITTED = (*SEEDS, "algorithm", "label", "name", "modules")
"""Keys that have a column of their own in the table of settings, or are a path of this machine."""

BY_CLIENTS = {
    "mean": "{score}_evaluation",
    "median": "{score}_evaluation_median",
    "worst tenth": "{score}_evaluation_worst",
    "fine-tuned: mean": "{score}_tuned_evaluation",
    "fine-tuned: worst tenth": "{score}_tuned_evaluation_worst",
}
"""The columns of the table of clients, and those of the frame that they come from."""


def scores(runs: Runs) -> Table:
    """Return best and final score of each variant, and the bytes and time of its runs."""
    sent, took, simulated = runs.bytes_unit, runs.time_unit, runs.simulated_unit
    rows = []
    for variant in runs.by_score:
        ends, timed = runs.of(variant), tuple[str, ...]()
        totals = (
            runs.rounds.filter(pl.col("variant") == variant)
            .group_by("directory", maintain_order=True)
            .agg(pl.col("total_bytes", "total_seconds", "time").last())
        )
        if simulated is not None:
            timed = (
                spread([simulated.factor * v for v in totals["time"].drop_nulls()], 1),
                span(ends["asked"]),
            )
        rows.append(
            (
                variant,
                str(len(ends)),
                span(ends["rounds"]) + _applied(ends),
                scored(ends["final"], runs.scale),
                scored(ends["best"], runs.scale),
                spread([sent.factor * v for v in totals["total_bytes"].drop_nulls()], 1),
                spread([took.factor * v for v in totals["total_seconds"].drop_nulls()], 1),
                *timed,
            )
        )
    columns: tuple[str, ...] = ("algorithm", "runs", "rounds", "final", "best")
    columns += (sent.name, took.name)
    note = ""
    if simulated is not None:
        columns += (simulated.name, "tasks")
        note = " Simulated time is that of the devices; tasks are those that clients were sent."
    extreme = "highest" if runs.scale.higher else "lowest"
    return Table(
        caption=f"{capital(runs.measure)} on the {runs.split} split{runs.heading}",
        columns=columns,
        rows=tuple(rows),
        note="± is the standard deviation over seeds; there is none where all runs are equal."
        f" Best is the {extreme} of all evaluations, so it is optimistic: it was picked on the"
        f" split it is measured on. {sent.name} are those of all messages, both ways. Time is the"
        f" measured duration of the rounds without evaluation.{note}",
    )


def _applied(ends: pl.DataFrame) -> str:
    """Return in how many rounds the model changed, if not in all."""
    all_applied = (ends["applied"] == ends["rounds"]).all()
    return "" if all_applied else f" ({span(ends['applied'])} applied)"


def clients(runs: Runs) -> list[Block]:
    """Return a table of the clients' last evaluations on examples of their own, if there are."""
    named = {
        title: column.format(score=runs.objective.score) for title, column in BY_CLIENTS.items()
    }
    named = {title: column for title, column in named.items() if column in runs.rounds.columns}
    if not named:
        return []
    last = runs.rounds.group_by("variant", "directory", maintain_order=True).agg(
        pl.col(column).drop_nulls().last() for column in named.values()
    )
    of = {v: last.filter(pl.col("variant") == v) for v in runs.by_score}
    table = Table(
        caption=f"{capital(runs.measure)} on the clients' own held-out examples{runs.heading}",
        columns=("algorithm", *named),
        rows=tuple(
            (v, *(scored(of[v][column], runs.scale) for column in named.values()))
            for v in runs.by_score
        ),
        note="The last evaluation of each run. Means are weighted by examples; the median and the"
        " worst tenth count each client once. ± is the standard deviation over seeds.",
    )
    return [table]


def costs(runs: Runs) -> list[Block]:
    """Return tables of the rounds, bytes and time to each target."""
    if not runs.targets:
        return []
    side = "above" if runs.scale.higher else "below"
    meaning = (
        f"Until the first evaluated round at or {side} the target on the {runs.split} split: the"
        " mean over the runs that reached it. ± is the standard deviation over seeds. (k of n):"
        " only k of n runs reached the target."
    )
    tables = [
        Table(
            caption=capital(unit.name),
            columns=("algorithm", *map(runs.scale.text, runs.targets)),
            rows=tuple(
                (
                    v,
                    *(
                        reached(runs.of(v)[f"{cost}_to_{t:g}"], unit.factor, 1)
                        for t in runs.targets
                    ),
                )
                for v in runs.by_score
            ),
        )
        for cost, unit in runs.cost_units.items()
    ]
    return [Text(meaning), *tables]


def attacks(runs: Runs) -> list[Block]:
    """Return what each attack costs under each defence, and what the attackers send, if any."""
    tables: list[Block] = [
        Table(
            caption=one.title,
            columns=tuple(one.columns),
            rows=tuple(map(tuple, one.rows)),
            note=one.note,
        )
        for one in damages(runs.configs, runs.rounds, runs.scale)
    ]
    named = {config.federation.attack for config in runs.configs.values()}
    sent = tuple(f"`{name}`: {attack.about}." for name, attack in ATTACKS.items() if name in named)
    return [*tables, Points(sent)] if sent else tables


def incidents(runs: Runs) -> list[Block]:
    """Return a table of the failed, rejected and limited replies by reason, if there were any."""
    counts: Counter[tuple[str, str, str]] = Counter()
    for directory, variant in runs.ends.select("directory", "variant").rows():
        for record in RunDirectory(Path(directory)).records():
            for kind in KINDS:
                for reason, count in record.get(kind, {}).items():
                    counts[variant, kind, reason] += count
    rows = [(v, KINDS[kind], reason, f"{n:,}") for (v, kind, reason), n in sorted(counts.items())]
    table = Table(
        caption="Replies that failed, were rejected or were limited",
        columns=("algorithm", "what", "reason", "replies"),
        rows=tuple(rows),
        words=("what", "reason"),
    )
    return [table] if rows else []


def settings(runs: Runs) -> list[Block]:
    """Return a table of the settings that differ, and one complete configuration."""
    flats = {
        str(run): flatten(config.model_dump(mode="json")) for run, config in runs.configs.items()
    }
    first, *others = flats.values()
    shared = {k for k, v in first.items() if all(k in f and f[k] == v for f in others)}
    rows = []
    for variant in runs.by_score:
        directories = runs.of(variant)["directory"]
        flat = flats[directories[0]]
        differing = [
            f"{key.removeprefix('settings.')} = {json.dumps(value)}"
            for key, value in flat.items()
            if value is not None and (key.startswith("settings.") or key not in (*shared, *OMITTED))
        ]
        algorithm = flat["algorithm"]
        name = algorithm if isinstance(algorithm, str) else json.dumps(algorithm)
        prefix = f"{name}: " if name != runs.titles[variant] else ""
        seeds = sorted({runs.seed(directory)[0] for directory in directories})
        rows.append((variant, prefix + (", ".join(differing) or "–"), ", ".join(map(str, seeds))))
    best = RunDirectory(Path(runs.of(runs.by_score[0])["directory"][0]))
    return [
        Table(
            caption="Settings, and what else differs between algorithms",
            columns=("algorithm", "settings", "seeds"),
            rows=tuple(rows),
            words=("settings",),
            note="All other settings are equal and stand in the file below. `lr` is the learning"
            " rate of round 1.",
        ),
        Code(
            caption=f"The configuration of {runs.by_score[0]}, `{best.path.name}`",
            text=file_text(best.config_file) or "",
            language="toml",
            folded=True,
        ),
    ]


def provenance(configs: Mapping[Path, Experiment], command: str) -> list[Block]:
    """Return the commands that made the runs, how to repeat one, and the machines."""
    ends = [end for run in configs if (end := RunDirectory(run).done()) is not None]
    commands = Counter(_words(end["command"]) for end in ends)
    example = next(iter(configs))
    blocks: list[Block] = []
    if commands:
        lines = "\n".join(
            f"{words}  # {count} run{'s' * (count != 1)}" for words, count in commands.items()
        )
        blocks.append(Code(caption="These commands made the runs:", text=lines))
    blocks += [
        Code(
            caption="The configuration of a run is enough to repeat it, to the same bits on the"
            " same machine and versions. For example:",
            text=f"fedlada run {shlex.quote(str(RunDirectory(example).config_file))}"
            f" --out {shlex.quote(f'again/{example.name}')}",
        ),
        Code(caption="This command made the report:", text=command),
    ]
    machines = Counter(tuple(_machine(end)) for end in ends)
    table = Table(
        caption="Machines and versions",
        columns=("processor", "cores", "threads", "device", "system", "versions", "runs"),
        rows=tuple((*machine, str(count)) for machine, count in machines.items()),
        words=("system", "versions"),
    )
    return [*blocks, table] if machines else blocks


def _words(command: Iterable[str]) -> str:
    program, *words = command
    name = Path(program).name
    return shlex.join(["fedlada" if name == "cli.py" else name, *words])


def _machine(end: dict[str, dict[str, object]]) -> list[str]:
    machine, versions = end["machine"], end["versions"]
    names = ", ".join(f"{name} {version}" for name, version in versions.items())
    device = machine.get("device", "cpu")  # runs of earlier versions do not say it
    own = [str(machine[key]) for key in ("processor", "cores", "torch_threads")]
    return [*own, str(device), str(machine["system"]), names]
