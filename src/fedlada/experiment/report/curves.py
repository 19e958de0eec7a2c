"""The curves of a report: the score against rounds, bytes and time, then the other metrics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ...client.scale import Scale
from ..results.comparison import capital
from ..run.directory import CLIENTS
from .blocks import Block, Figure, Text, Views
from .figures import NARROW, Panel, curves
from .runs import Runs
from .series import Series, recorded, series, thinned
from .window import Window, window

__all__ = ["measures", "scores"]

COARSE = 60  # maximum points of a line on a narrow screen
SAME = 1e-3  # drift and consistency are drawn once if they differ by less than this share
DRIFT = {
    "drift": ("Drift: mean ‖Δᵢ − mean Δ‖²", 1.0),
    "consistency": ("Consistency: mean ‖yᵢ − x‖²", 1.0),
}
MEANING = (
    "Drift is how far the clients of a round moved apart: Δᵢ is the way of client i. Consistency is"
    " how far their models yᵢ ended from the server's new model x. Where the server moves by the"
    " mean of the ways, as FedAvg does, the two are the same number; they differ only where it"
    " moves otherwise, such as with Adam on the server or another server_lr."
)

Titles = dict[str, tuple[str, float]]  # title and scale by column


def scores(runs: Runs) -> list[Block]:
    """Return the score against rounds, bytes and time: one figure, of which to choose the axis."""
    if not recorded(runs, "score"):
        return []
    sent, took, factor = runs.bytes_unit, runs.time_unit, runs.scale.factor
    against = {
        "rounds": ("rounds", series(runs, "score", scale=factor)),
        "bytes": (
            f"{sent.name} sent, both ways, all clients",
            series(runs, "score", against="total_bytes", x=sent, scale=factor),
        ),
        "time": (
            f"{took.name} of training",
            series(runs, "score", against="total_seconds", x=took, scale=factor),
        ),
    }
    drawn = window(against["rounds"][1], runs.scale)
    words = {"rounds": "rounds", "bytes": sent.name, "time": took.name}
    views = {
        words[name]: _score(runs, name, lines, across, drawn)
        for name, (across, lines) in against.items()
    }
    return [Text(_bands(runs, "score")), Views(name=runs.objective.score, figures=views)]


def _score(runs: Runs, name: str, lines: Sequence[Series], across: str, drawn: Window) -> Figure:
    title = f"{capital(runs.measure)} on the {runs.split} split{runs.heading}"
    alt = f"{title}, against {across}. At the end: {_ends(lines, runs.scale)}."
    axis = f"{across}, logarithmic" if drawn.ratios else across
    whole = Panel(
        title=title + drawn.title,
        across=axis,
        series=lines,
        levels=[(runs.scale.factor * target, runs.scale.text(target)) for target in runs.targets],
        whole=name == "rounds",
        errors=drawn.errors,
        ratios=drawn.ratios,
        between=(drawn.low, drawn.high),
    )
    extra = {
        "bytes": "Bytes are those of the messages, at the mean over runs of the same round.",
        "time": "Time is that of the rounds as they were run, clients one after the other where"
        " they are simulated, at the mean over runs of the same round; evaluation is not included.",
    }
    caption = " ".join(filter(None, (drawn.caption(runs.measure), extra.get(name))))
    said = f"{runs.measure}{runs.heading}{drawn.title}"
    panels, height = (_split(runs, whole, said), 2.7) if runs.crowded else ([whole], 3.8)
    return _figure(f"{runs.objective.score}-{name}", panels, alt, caption, runs, height=height)


def _figure(
    name: str, panels: Sequence[Panel], alt: str, caption: str, runs: Runs, *, height: float
) -> Figure:
    """Draw panels for a wide and for a narrow screen."""
    long = max(len(line.name) for panel in panels for line in panel.series) > 20
    columns = 1 if len(panels) == 1 or long else 2
    few = [replace(p, series=[s.coarse(COARSE) for s in p.series]) for p in panels]
    # In crowded figures a line is named by its settings alone, which only its panel explains.
    legend = () if runs.crowded else tuple(dict.fromkeys(s.name for p in panels for s in p.series))
    return Figure(
        name=name,
        svg=curves(panels, columns=columns, height=height, alt=alt),
        narrow=curves(few, columns=1, height=2.7, alt=alt, width=NARROW, labels=not legend),
        legend=legend,
        alt=alt,
        caption=caption,
    )


def measures(runs: Runs) -> list[Block]:
    """Return figures of the other metrics, drift and consistency, as far as recorded."""
    if runs.crowded:
        return [Text(f"Not drawn for {len(runs.variants)} lines: give fewer runs to see them.")]
    blocks: list[Block] = []
    for name, columns in {"losses": _losses(runs), "drift": DRIFT}.items():
        known = [column for column in columns if recorded(runs, column)]
        if name == "drift" and _same(runs, known):
            columns, known = {"drift": ("Drift, and consistency: the same here", 1.0)}, known[:1]
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
            caption = MEANING if name == "drift" else ""
            step = thinned(runs, known[0], len(known))
            caption += f" One in {step} points is drawn." if step > 1 else ""
            blocks.append(
                _figure(name, panels, f"Against rounds: {told}.", caption.strip(), runs, height=2.7)
            )
    return blocks


def _same(runs: Runs, columns: Sequence[str]) -> bool:
    """Tell whether all these columns have about the same numbers in every record."""
    if len(columns) < 2:
        return False
    rows = runs.rounds.select(columns).drop_nulls().rows()
    return all(max(row) - min(row) <= SAME * max(row) for row in rows)


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
    score = f"{capital(objective.title)} {where}{runs.heading}"
    titles[f"train_{objective.score}"] = (score, objective.scale.factor)
    for name in names:
        titles[f"train_{name}"] = (f"{capital(objective.title_of(name))} {where}", 1.0)
    return titles | {f"{CLIENTS}loss": ("Clients' loss while training", 1.0)}


def _split(runs: Runs, whole: Panel, said: str) -> list[Panel]:
    """Return one panel per algorithm, with lines named only by their settings."""
    panels = []
    for title in dict.fromkeys(runs.titles.values()):
        own = [
            replace(line, name=line.name.removeprefix(title).strip() or title)
            for line in whole.series
            if runs.titles[line.name] == title
        ]
        if own:
            panels.append(replace(whole, title=f"{title}: {said}", series=own))
    return panels


def _far_apart(lines: Sequence[Series]) -> bool:
    """Tell whether the values span a range that needs a logarithmic axis."""
    low, high = min(min(s.low) for s in lines), max(max(s.high) for s in lines)
    return low > 0 and high / low > 30


def _bands(runs: Runs, column: str) -> str:
    """Say how the lines and bands of all figures are made."""
    step = thinned(runs, column)
    drawn = "every evaluation" if step == 1 else f"one in {step} evaluations"
    if max(len(runs.of(variant)) for variant in runs.variants) == 1:
        return f"In all curves of this report: one run each, so no bands; {drawn}, not smoothed."
    part = ", of those that have the round," if runs.unfinished else ""
    return (
        f"In all curves of this report: lines are means over seeds{part} at {drawn}, not smoothed;"
        " bands reach from the smallest to the largest."
    )


def _ends(lines: Sequence[Series], scale: Scale) -> str:
    order = sorted(lines, key=lambda line: -scale.sign * line.mean[-1])
    return ", ".join(f"{line.name} {line.mean[-1]:.{scale.digits - 1}f}" for line in order)
