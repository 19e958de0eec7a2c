"""The tables of a report: scores, costs of targets, and failed, rejected or limited replies."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import polars as pl

from ..results.comparison import capital, scored, span, spread
from ..run.directory import RunDirectory
from .blocks import Table, Text
from .runs import Runs, Unit

__all__ = ["costs", "incidents", "scores"]

KINDS = {"rejected": "rejected", "limited": "accepted, but limited", "failures": "no reply"}


def scores(runs: Runs) -> Table:
    """Return best and final score of each variant, and the bytes and time of its runs."""
    sent, took = runs.bytes_unit, runs.time_unit
    rows = []
    for variant in runs.by_score:
        ends = runs.of(variant)
        own = runs.rounds.filter(pl.col("variant") == variant)
        totals = own.group_by("directory", maintain_order=True).agg(
            pl.col("total_bytes", "total_seconds").last()
        )
        rows.append(
            (
                variant,
                str(len(ends)),
                span(ends["rounds"]) + _applied(ends),
                scored(ends["final"], runs.scale),
                scored(ends["best"], runs.scale),
                spread([sent.factor * v for v in totals["total_bytes"]], 1),
                spread([took.factor * v for v in totals["total_seconds"]], 1),
            )
        )
    return Table(
        caption=f"{capital(runs.measure)} on the {runs.split} split{runs.heading}",
        columns=("algorithm", "runs", "rounds", "final", "best", sent.name, took.name),
        rows=tuple(rows),
        note="Mean ± standard deviation over runs, which differ in their seeds (no ± where all are"
        f" equal). Best is the {_extreme(runs)} of all evaluations, so it is optimistic: it was"
        " picked on the split it is measured on."
        f" {sent.name} both ways, all clients of all rounds; time of the rounds as they were run,"
        " evaluation not included.",
    )


def _extreme(runs: Runs) -> str:
    return "highest" if runs.scale.higher else "lowest"


def _applied(ends: pl.DataFrame) -> str:
    """Return in how many rounds the model changed, if not in all."""
    all_were = (ends["applied"] == ends["rounds"]).all()
    return "" if all_were else f" ({span(ends['applied'])} applied)"


def costs(runs: Runs) -> list[Text | Table]:
    """Return tables of the rounds, bytes and time to each target."""
    if not runs.targets:
        return []
    titles = {
        "rounds": ("Rounds", Unit("rounds", 1)),
        "bytes": (f"{runs.bytes_unit.name} on the wire", runs.bytes_unit),
        "seconds": (runs.time_unit.name.capitalize(), runs.time_unit),
    }
    side = "above" if runs.scale.higher else "below"
    meaning = (
        f"Until the first evaluated round at or {side} the target on the {runs.split} split; mean ±"
        " standard deviation over the runs that reached it. (k of n): only k of n runs did."
    )
    tables = [
        Table(
            caption=title,
            columns=("algorithm", *map(runs.scale.text, runs.targets)),
            rows=tuple(
                (v, *(_reached(runs.of(v)[f"{name}_to_{t:g}"], unit) for t in runs.targets))
                for v in runs.by_score
            ),
        )
        for name, (title, unit) in titles.items()
    ]
    return [Text(meaning), *tables]


def _reached(values: pl.Series, unit: Unit) -> str:
    there = [unit.factor * float(value) for value in values.drop_nulls()]
    text = spread(there, 1) if there else "not reached"
    return text if len(there) == len(values) else f"{text} ({len(there)} of {len(values)})"


def incidents(runs: Runs) -> Table | None:
    """Return the failed, rejected and limited replies by reason; None if there were none."""
    counts: Counter[tuple[str, str, str]] = Counter()
    for directory, variant in runs.ends.select("directory", "variant").rows():
        for record in RunDirectory(Path(directory)).records():
            for kind in KINDS:
                for reason, count in record.get(kind, {}).items():
                    counts[variant, kind, reason] += count
    if not counts:
        return None
    rows = [(v, KINDS[kind], reason, f"{n:,}") for (v, kind, reason), n in sorted(counts.items())]
    return Table(
        caption="Replies that did not arrive, or were not taken as they came",
        columns=("algorithm", "what", "reason", "replies"),
        rows=tuple(rows),
        words=("what", "reason"),
    )
