"""The report of ``fedlada attack``: tables of damage and a heat map, as HTML and as Markdown."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from math import inf
from pathlib import Path

from ...engines.attacks import ATTACKS
from ...errors import MissingExtra
from ..config.experiment import Experiment
from ..results.damage import Damage, rows_of, shares_of
from ..run.attack import BASELINES
from .blocks import Block, Code, Figure, Points, Section, Table, Text
from .figures import NARROW, WIDTH
from .heat_map import heat_map, lost
from .pages import write_pages

__all__ = ["attack_report"]

NOTE = (
    "Points lost: the score without the colluders (absent) minus the score under attack, with the"
    " same defence and seed; the first rows are the scores themselves. Where there are several"
    " seeds: mean [smallest, largest]."
)


def attack_report(
    found: Sequence[Damage],
    config: Experiment,
    *,
    skipped: Mapping[str, str],
    out: Path,
    last: int,
) -> list[Path]:
    """Write report.html, attacks.md and the figure, and return what was written."""
    title, lead = f"Attacks on {config.name}", _lead(found, config, last)
    sections = _sections(found, skipped)
    return write_pages(out, title, lead, sections, positions={}, text="attacks.md")


def _sections(found: Sequence[Damage], skipped: Mapping[str, str]) -> list[Section]:
    try:
        picture: list[Block] = [
            figure for share in shares_of(found) for figure in _figure(found, share)
        ]
    except MissingExtra as error:
        picture = [Text(f"Not drawn: {error}", warns=True)]
    attacks = list(dict.fromkeys(one.attack for one in found))
    about = {**BASELINES, **{name: attack.about for name, attack in ATTACKS.items()}}
    return [
        Section(
            "Damage", [*_worst(found), *(_damage(found, s) for s in shares_of(found)), *picture]
        ),
        Section("What else was seen", [_details(found, share) for share in shares_of(found)]),
        Section("The attacks", [Points(tuple(f"`{name}`: {about[name]}." for name in attacks))]),
        Section(
            "Not applicable",
            [Points(tuple(f"`{name}`: {why}." for name, why in skipped.items()))]
            if skipped
            else [],
        ),
        Section("How to repeat it", [_command(found)]),
    ]


def _worst(found: Sequence[Damage]) -> list[Block]:
    """Return a sentence per share and defence about what was lost at most."""
    points = []
    for share in shares_of(found):
        for defence in dict.fromkeys(one.defence for one in found):
            own = [
                one
                for one in found
                if (one.share, one.defence) == (share, defence) and one.attack not in BASELINES
            ]
            if own:
                one = max(own, key=lambda d: inf if d.damage is None else d.damage.mean)
                same = [other.attack for other in own if other is one or _level(other, one)]
                seeds = ", one seed" if len(one.lines) == 1 else ""
                points.append(
                    f"{100 * share:g} % colluding against {defence}: at most {lost(one)} points"
                    f" lost ({', '.join(same)}{seeds})."
                )
    return [Points(tuple(points))] if points else []


def _level(one: Damage, worst: Damage) -> bool:
    """Tell whether an attack cannot be told from the worst: it costs as much in some seeds."""
    if one.damage is None or worst.damage is None:
        return one.damage is worst.damage
    return round(one.damage.high, 1) >= round(worst.damage.low, 1)


def _damage(found: Sequence[Damage], share: float) -> Table:
    defences, rows = rows_of(found, share)
    return Table(
        caption=f"{100 * share:g} % of the clients collude: points lost",
        columns=("attack", *defences),
        rows=tuple((attack, *cells) for attack, cells in rows.items()),
        note=NOTE,
    )


def _details(found: Sequence[Damage], share: float) -> Table:
    """Return the table of replies limited and rejected, second moments, norms and backdoors."""
    own = [one for one in found if one.share in (share, 0.0)]
    roots = list(dict.fromkeys(n for one in own for line in one.lines for n in line["median_root"]))
    norms = list(dict.fromkeys(n for one in own for line in one.lines for n in line["norms"]))
    rows = []
    for one in own:
        marks = [_number(one.mean_of("median_root", name)) for name in roots]
        marks += [_number(one.mean_of("norms", name)) for name in norms]
        rows.append(
            (
                one.attack,
                one.defence,
                "" if one.strength is None else f"{one.strength:g}",
                "–" if one.score is None else one.score.text(),
                _number(one.mean_of("limited")),
                _number(one.mean_of("rejected")),
                "–" if one.backdoor is None else one.backdoor.text(),
                *marks,
            )
        )
    named = (*(f"median √{name}" for name in roots), *(f"norm of {name}" for name in norms))
    return Table(
        caption=f"{100 * share:g} % of the clients collude: all numbers",
        columns=(
            *("attack", "defence", "strength", "score, %"),
            *("limited", "rejected", "stamped, %", *named),
        ),
        rows=tuple(rows),
        words=("defence",),
        note="Limited and rejected: corrections and rejections by the guard over the whole run,"
        " mean over seeds. Stamped: stamped inputs of other classes that the last model takes for"
        " the first class, which is what the backdoor is after.",
    )


def _figure(found: Sequence[Damage], share: float) -> list[Figure]:
    attacked = [one for one in found if one.share == share and one.attack not in BASELINES]
    if not any(one.damage for one in attacked):
        return []
    title = f"Points lost with {100 * share:g} % colluding"
    names = {one.attack for one in attacked}, {one.defence for one in attacked}
    empty = " Empty: not run." if len(attacked) < len(names[0]) * len(names[1]) else ""
    alt = f"{title}: " + ", ".join(f"{d.attack} under {d.defence} {lost(d)}" for d in attacked)
    return [
        Figure(
            name=f"attacks-{100 * share:g}",
            svg=heat_map(attacked, title, alt, WIDTH),
            narrow=heat_map(attacked, title, alt, NARROW),
            alt=alt,
            caption=f"{title}: the stronger the colour, the more an attack (row) costs under a"
            " defence (column), beyond leaving the colluders out. Blue: the score was higher."
            f"{empty}",
        )
    ]


def _command(found: Sequence[Damage]) -> Code:
    typed = {
        shlex.join(["fedlada", *line["command"][1:]]): None for one in found for line in one.lines
    }
    return Code(caption="What was typed:", text="\n".join(typed))


def _lead(found: Sequence[Damage], config: Experiment, last: int) -> str:
    seeds = max(len(one.lines) for one in found)
    attacks = {one.attack for one in found} - {*BASELINES}
    measure = config.objective([found[0].lines[0]["metric"]]).title
    count = min(last, len(found[0].lines[0]["curve"]))
    late = "evaluation" if count == 1 else f"{count} evaluations"
    return (
        f"{config.title} on {config.data.dataset}, {config.federation.rounds} rounds;"
        f" {len(attacks)} attack{'s' * (len(attacks) != 1)}, {seeds} seed{'s' * (seeds != 1)};"
        f" {measure} on the {config.evaluate.split} split, mean of the last {late}."
    )


def _number(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
