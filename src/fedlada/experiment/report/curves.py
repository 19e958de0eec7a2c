"""The curves of a report: the score against rounds, bytes and time, then the other metrics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..results.comparison import capital
from ..run.directory import CLIENTS
from .blocks import Figure, Text
from .figures import Panel, curves
from .runs import Runs, Unit, percent
from .series import Series, recorded, series, thinned

__all__ = ["measures", "scores"]

CLOSE = 0.4  # lines within this share of the height are hard to tell apart
DRIFT = {
    "drift": ("Drift: mean ‖Δᵢ − mean Δ‖²", 1.0),
    "consistency": ("Consistency: mean ‖yᵢ − x‖²", 1.0),
}

Titles = dict[str, tuple[str, float]]  # title and scale by column


def scores(runs: Runs) -> list[Figure]:
    """Return the score against rounds, bytes and time, and the late rounds if lines are close."""
    if not recorded(runs, "score"):
        return []
    sent, took = runs.bytes_unit, runs.time_unit
    wire, clock = f"{sent.name} sent, both ways, all clients", f"{took.name} of training"
    rounds = series(runs, "score", scale=100)
    late = [] if runs.crowded or len(rounds) == 1 else _late(rounds)
    return [
        _score(runs, "rounds", rounds, "rounds"),
        *([_score(runs, "late-rounds", late, "rounds, the second half")] if late else []),
        _score(runs, "bytes", _score_lines(runs, "total_bytes", sent), wire),
        _score(runs, "time", _score_lines(runs, "total_seconds", took), clock),
    ]


def _score_lines(runs: Runs, against: str, unit: Unit) -> list[Series]:
    return series(runs, "score", against=against, x=unit, scale=100)


def _score(runs: Runs, name: str, lines: Sequence[Series], across: str) -> Figure:
    levels = [(100 * target, percent(target)) for target in runs.targets]
    title = f"{capital(runs.measure)} on the {runs.split} split, %"
    alt = f"{title}, against {across}. At the end: {_ends(lines)}."
    if not runs.crowded:
        panels = [
            Panel(title=title, across=across, series=lines, levels=levels, whole="rounds" in across)
        ]
        svg = curves(panels, columns=1, height=3.0 if name == "late-rounds" else 3.8, alt=alt)
    else:
        svg = curves(_split(runs, lines, across, levels), columns=2, height=2.9, alt=alt)
    extra = {
        "bytes": " Bytes are those of the messages, at the mean over runs of the same round.",
        "time": " Time is that of the rounds as they were run, clients one after the other where"
        " they are simulated, at the mean over runs of the same round; evaluation is not included.",
    }.get(name, "")
    caption = f"Against {across}. {_bands(runs, 'score')}{extra}"
    return Figure(name=f"{runs.objective.score}-{name}", svg=svg, alt=alt, caption=caption)


def _late(lines: Sequence[Series]) -> list[Series]:
    """Return the second half of the lines if they are too close there, otherwise nothing."""
    half = max(line.x[-1] for line in lines) / 2
    ends = [line.since(half) for line in lines if line.x[-1] > half]
    (low, high), (bottom, top) = _range(ends), _range(lines)
    close = high - low < CLOSE * (top - bottom)
    return ends if close and min(len(line.x) for line in ends) > 1 else []


def _range(lines: Sequence[Series]) -> tuple[float, float]:
    return min(min(s.low) for s in lines), max(max(s.high) for s in lines)


def measures(runs: Runs) -> list[Figure | Text]:
    """Return figures of the other metrics, drift and consistency, as far as recorded."""
    if runs.crowded:
        return [Text(f"Not drawn for {len(runs.variants)} lines: give fewer runs to see them.")]
    figures: list[Figure | Text] = []
    for name, columns in {"losses": _losses(runs), "drift": DRIFT}.items():
        known = [column for column in columns if recorded(runs, column)]
        panels = []
        for column in known:
            title, scale = columns[column]
            lines = series(runs, column, scale=scale, panels=len(known))
            far = _far_apart(lines)
            panels.append(
                Panel(title=title, across="rounds", series=lines, whole=True, logarithmic=far)
            )
        if panels:
            told = ", ".join(panel.title for panel in panels)
            alt = f"Against rounds: {told}."
            wide = max(len(line.name) for panel in panels for line in panel.series) > 24
            svg = curves(panels, columns=1 if wide else 2, height=2.9, alt=alt)
            caption = f"{_bands(runs, known[0], len(known))}{_meaning(known)}"
            figures.append(Figure(name=name, svg=svg, alt=alt, caption=caption))
    return figures


def _losses(runs: Runs) -> Titles:
    """Return all metrics except the score, then those on training data and the clients' loss."""
    objective = runs.objective
    names = [name for name in objective.metrics if name != objective.score]
    titles: Titles = {
        f"{split}_{name}": (f"{capital(objective.title_of(name))} on the {split} split", 1.0)
        for split in ("test", "validation")
        for name in names
    }
    where = f"on training {runs.things}"
    titles[f"train_{objective.score}"] = (f"{capital(objective.title)} {where}, %", 100.0)
    for name in names:
        titles[f"train_{name}"] = (f"{capital(objective.title_of(name))} {where}", 1.0)
    return titles | {f"{CLIENTS}loss": ("Clients' loss while training", 1.0)}


def _split(
    runs: Runs, lines: Sequence[Series], across: str, levels: Sequence[tuple[float, str]]
) -> list[Panel]:
    """Return one panel per algorithm, with lines named only by their settings."""
    panels = []
    low, high = _range(lines)
    for title in dict.fromkeys(runs.titles.values()):
        own = [
            replace(line, name=line.name.removeprefix(title).strip() or title)
            for line in lines
            if runs.titles[line.name] == title
        ]
        if own:
            between = (low - 0.03 * (high - low), high + 0.03 * (high - low))
            panels.append(
                Panel(
                    title=title,
                    across=across,
                    series=own,
                    levels=levels,
                    whole="rounds" in across,
                    between=between,
                )
            )
    return panels


def _far_apart(lines: Sequence[Series]) -> bool:
    """Tell whether the values span a range that needs a logarithmic axis."""
    low, high = _range(lines)
    return low > 0 and high / low > 30


def _bands(runs: Runs, column: str, panels: int = 1) -> str:
    step = thinned(runs, column, panels)
    drawn = "every evaluation" if step == 1 else f"one in {step} evaluations"
    if max(len(runs.of(variant)) for variant in runs.variants) == 1:
        return f"One run each, so no bands; {drawn}, not smoothed."
    part = ", of those that have the round," if runs.unfinished else ""
    return f"Lines: mean over seeds{part} at {drawn}, not smoothed; bands: smallest to largest."


def _meaning(columns: Sequence[str]) -> str:
    return (
        " Δᵢ: how far client i moved in the round; yᵢ: its model at the end; x: the server's new"
        " model."
        if "drift" in columns or "consistency" in columns
        else ""
    )


def _ends(lines: Sequence[Series]) -> str:
    order = sorted(lines, key=lambda line: -line.mean[-1])
    return ", ".join(f"{line.name} {line.mean[-1]:.1f}" for line in order)
