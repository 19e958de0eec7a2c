"""The cost of attacks: the score that each attack takes away under each defence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from ...redteam.defences import ABSENT, ATTACK_NAMES, DEFENCES, HONEST
from ...training.objective import Scale
from ..config.experiment import Experiment
from .frames import summary, variants
from .tuning import LAST

__all__ = ["Damage", "damages"]

KEYS = tuple(f"federation.{k}" for k in ("attack", "attackers", "attack_strength", "defence"))

Scores = dict[tuple[int, int], float]
"""The score of each pair of seeds, in its unit."""


@dataclass(frozen=True, kw_only=True)
class Damage:
    """A table for one federation and one number of attackers: attacks down, defences across."""

    title: str
    columns: list[str]
    rows: list[list[str]]
    """The scores of the baselines, then what each attack takes away; empty where nothing ran."""
    lost: dict[tuple[str, str], Scores]
    """What each attack takes away under each defence, by seeds."""
    note: str


def damages(configs: Mapping[Path, Experiment], data: pl.DataFrame, scale: Scale) -> list[Damage]:
    """Return a table for each federation and each number of attackers; none without attacks."""
    ends = summary(data, last=LAST).select("directory", "final").drop_nulls()
    finals = {Path(run): scale.factor * final for run, final in ends.rows()}
    tables: dict[tuple[str, float], dict[tuple[str, str], Scores]] = {}
    federations = {run: name for run, (name, _) in variants(configs, KEYS).items()}
    attackers = {
        (federations[run], config.federation.attackers): None
        for run, config in configs.items()
        if config.federation.attack != HONEST
    }
    for name, number in attackers:
        for run in sorted(finals, key=lambda run: _place(configs[run])):
            federation, seed = configs[run].federation, configs[run].data.seed
            if federations[run] == name and (
                federation.attack == HONEST or federation.attackers == number
            ):
                scores = tables.setdefault((name, number), {})
                cell = scores.setdefault((_label(configs[run]), federation.defence), {})
                cell[federation.seed, seed] = finals[run]
    return [_damage(*key, scores, scale) for key, scores in tables.items()]


def _damage(
    name: str, number: float, scores: Mapping[tuple[str, str], Scores], scale: Scale
) -> Damage:
    who = f"{100 * number:g} % of the clients" if isinstance(number, float) else f"{number} clients"
    tried = {defence for label, defence in scores if label != HONEST}
    defences = [defence for defence in DEFENCES if defence in tried]
    labels = list(dict.fromkeys(label for label, _ in scores))
    baseline = ABSENT if ABSENT in labels else HONEST
    lost = {
        (label, defence): _lost(scores.get((baseline, defence), {}), attacked, scale)
        for (label, defence), attacked in scores.items()
        if label not in (HONEST, ABSENT)
    }
    shown = {place: _text(lost.get(place, cell), scale) for place, cell in scores.items()}
    return Damage(
        title=f"{name}, {who} attack",
        columns=["attack", *defences],
        rows=[[label, *(shown.get((label, d), "") for d in defences)] for label in labels],
        lost=lost,
        note=f"The rows {HONEST} and {ABSENT} are scores, the mean of the last {LAST} evaluations;"
        f" the others are {scale.difference} lost compared with {baseline}, with the same defence"
        " and seed (–: no such run). Several seeds: mean [least, most].",
    )


def _lost(without: Scores, attacked: Scores, scale: Scale) -> Scores:
    return {s: scale.sign * (without[s] - score) for s, score in attacked.items() if s in without}


def _label(config: Experiment) -> str:
    strength = config.federation.attack_strength
    return config.federation.attack + ("" if strength is None else f" × {strength:g}")


def _place(config: Experiment) -> tuple[int, float]:
    return ATTACK_NAMES.index(config.federation.attack), config.federation.attack_strength or 0.0


def _text(scores: Scores, scale: Scale) -> str:
    """Return ``12.3`` or, for several seeds, ``12.3 [11.9, 12.8]``."""
    if not scores:
        return "–"
    digits, values = 1 if scale.unit == "%" else scale.digits, scores.values()
    spread = sum(values) / len(values), min(values), max(values)
    mean, least, most = (f"{round(v, digits) + 0.0:.{digits}f}" for v in spread)
    return (mean if len(values) == 1 else f"{mean} [{least}, {most}]").replace("-", "−")
