"""What attacks cost: the score without the colluders minus the score under attack, in points."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.box import SIMPLE_HEAD
from rich.console import Group
from rich.table import Table

from ...engines.attacks import ATTACKS
from ..run.attack import ABSENT, BASELINES, HONEST, Cell
from ..run.attack_directory import Line
from ..run.defences import DEFENCES

__all__ = [
    *("Damage", "Spread", "as_csv", "as_table", "damages", "rows_of", "shares_of", "worst"),
]


@dataclass(frozen=True)
class Spread:
    """A mean over seeds, and the smallest and largest of them."""

    mean: float
    low: float
    high: float
    count: int

    @classmethod
    def of(cls, values: Sequence[float | None]) -> Spread | None:
        """Return the spread of the values; None if there are none, or one is not known."""
        known = [value for value in values if value is not None]
        if not known or len(known) < len(values):
            return None
        return cls(math.fsum(known) / len(known), min(known), max(known), len(known))

    def text(self, form: str = "{:.1f}") -> str:
        """Return ``12.3`` or, for several seeds, ``12.3 [11.9, 12.8]``."""
        mean, low, high = (form.format(v + 0.0) for v in (self.mean, self.low, self.high))
        return (mean if self.count == 1 else f"{mean} [{low}, {high}]").replace("-", "−")


@dataclass(frozen=True)
class Damage:
    """One attack under one defence, at the strength that costs most, over all seeds."""

    attack: str
    defence: str
    share: float
    strength: float | None
    score: Spread | None
    """In percent."""
    damage: Spread | None
    """Points below the run without the colluders."""
    lines: tuple[Line, ...]
    """The cells of this attack, defence, share and strength."""

    @property
    def backdoor(self) -> Spread | None:
        """How many of 100 stamped inputs are taken for the target."""
        known = [line["backdoor"] for line in self.lines]
        return Spread.of([None if value is None else 100 * value for value in known])

    def mean_of(self, key: str, name: str | None = None) -> float | None:
        """Return the mean over seeds of a number of the lines, or of all numbers of a table."""
        found = [line[key] for line in self.lines]
        numbers = [sum(f.values()) if name is None else f.get(name) for f in found]
        spread = Spread.of(numbers)
        return None if spread is None else spread.mean


def damages(lines: Mapping[Cell, Line], *, last: int) -> dict[Cell, Line]:
    """Return the lines with score and damage, from the last evaluations of each curve.

    ``damage`` is against the run without the colluders, ``damage_honest`` against that in which
    nobody attacks, both with the same defence and seed.
    """
    scores = {cell: _score(line, last) for cell, line in lines.items()}
    found = {}
    for cell, line in sorted(lines.items(), key=lambda item: _place(item[0])):
        honest = scores.get(Cell(HONEST, None, cell.defence, 0.0, cell.seed))
        absent = scores.get(Cell(ABSENT, None, cell.defence, cell.share, cell.seed))
        own = scores[cell]
        found[cell] = {
            **line,
            "score": own,
            "damage": None if cell.attack == HONEST else _less(absent, own),
            "damage_honest": _less(honest, own),
            "last": last,
        }
    return found


def worst(lines: Mapping[Cell, Line]) -> list[Damage]:
    """Return every attack under every defence, each at the strength that costs most."""
    groups: dict[tuple[str, str, float], dict[float | None, list[Line]]] = {}
    for cell, line in lines.items():
        strengths = groups.setdefault((cell.attack, cell.defence, cell.share), {})
        strengths.setdefault(cell.strength, []).append(line)
    found = []
    for (attack, defence, share), strengths in groups.items():
        tried = [
            Damage(
                attack,
                defence,
                share,
                strength,
                Spread.of([_percent(line["score"]) for line in own]),
                Spread.of([_percent(line["damage"]) for line in own]),
                tuple(own),
            )
            for strength, own in strengths.items()
        ]
        found.append(max(tried, key=lambda d: math.inf if d.damage is None else d.damage.mean))
    return found


def as_table(found: Sequence[Damage]) -> Group:
    """Return a table for a terminal for each share: attacks down, defences across."""
    return Group(*(_table(found, share) for share in shares_of(found)))


def shares_of(found: Sequence[Damage]) -> list[float]:
    """Return the shares of colluders that there are."""
    return sorted({one.share for one in found if one.attack != HONEST})


def rows_of(found: Sequence[Damage], share: float) -> tuple[list[str], dict[str, list[str]]]:
    """Return the defences, and for each attack a text per defence; baselines have scores."""
    defences = list(dict.fromkeys(one.defence for one in found))
    by_place = {(d.attack, d.defence): d for d in found if d.share in (share, 0.0)}
    rows = {}
    for attack in dict.fromkeys(attack for attack, _ in by_place):
        own = [by_place.get((attack, defence)) for defence in defences]
        rows[attack] = [_text(one) for one in own]
    return defences, rows


def as_csv(found: Sequence[Damage]) -> str:
    """Return everything as comma-separated values, one row for each attack and defence."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    ends = ("mean", "low", "high")
    measures = ("score", "damage", "backdoor")
    table.writerow(
        [
            *("attack", "defence", "share", "strength", "seeds"),
            *(f"{measure}_{end}" for measure in measures for end in ends),
            *("limited", "rejected"),
        ]
    )
    for one in found:
        spreads = [getattr(one, measure) for measure in measures]
        numbers = [None if s is None else getattr(s, end) for s in spreads for end in ends]
        table.writerow(
            [
                *(one.attack, one.defence, one.share, one.strength, len(one.lines), *numbers),
                *(one.mean_of("limited"), one.mean_of("rejected")),
            ]
        )
    return text.getvalue()


def _table(found: Sequence[Damage], share: float) -> Table:
    defences, rows = rows_of(found, share)
    title = f"{100 * share:g} % of the clients collude: points lost"
    table = Table(title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD)
    table.add_column("attack", no_wrap=True)
    for defence in defences:
        table.add_column(defence, justify="right")
    for attack, cells in rows.items():
        table.add_row(attack, *cells, end_section=attack == ABSENT)
    return table


def _text(one: Damage | None) -> str:
    if one is None:
        return ""
    spread = one.score if one.attack in BASELINES else one.damage
    if spread is None:
        return "diverged"
    return spread.text() + " %" if one.attack in BASELINES else spread.text("{:+.1f}")


def _score(line: Line, last: int) -> float | None:
    """Return the mean of the last evaluations; None if one of them is not a number."""
    late = [score for _, score in line["curve"][-last:]]
    return None if not late or None in late else math.fsum(late) / len(late)


def _place(cell: Cell) -> tuple[object, ...]:
    """Return what cells are sorted by: baselines first, then attacks and defences as listed."""
    attacks, defences = [*BASELINES, *ATTACKS], list(DEFENCES)
    strength = cell.strength or 0.0
    names = attacks.index(cell.attack), defences.index(cell.defence)
    return (cell.share, *names, strength, cell.seed)


def _less(before: float | None, after: float | None) -> float | None:
    return None if before is None or after is None else before - after


def _percent(value: float | None) -> float | None:
    return None if value is None else 100 * value
