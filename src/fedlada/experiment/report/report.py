"""``fedlada report``: writes a report on runs as one HTML file and as Markdown with figures."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from ..config.sections import Data
from ..results.comparison import capital, unapplied
from .blocks import Section, Text
from .curves import measures, scores as score_curves
from .figures import styled
from .forest import forest
from .in_short import in_short
from .origin import origin, settings
from .pages import HTML, MARKDOWN, write_pages
from .pairs import pairs, reference_of
from .partition import partitions
from .runs import Runs
from .tables import costs, incidents, scores

__all__ = ["HTML", "MARKDOWN", "report"]


def report(
    directories: Sequence[Path],
    *,
    out: Path | None = None,
    targets: Sequence[float] | None = None,
    reference: str | None = None,
    rounds: int | None = None,
) -> Path:
    """Write the report on all runs in the directories and return its directory."""
    with styled():  # raises an error at once if matplotlib is missing
        pass
    runs = Runs.read(directories, targets, rounds)
    against = reference_of(runs, reference)
    where = directories[0] / "report" if out is None else out
    words = ["fedlada", "report", *map(str, directories), "--out", str(where)]
    words += [word for target in targets or () for word in ("--target", f"{target:g}")]
    words += ["--reference", reference] if reference else []
    words += ["--rounds", str(rounds)] if rounds else []
    sections = _sections(runs, against, shlex.join(words))
    names = {config.name: None for config in runs.configs.values()}
    title, lead = f"Comparison: {', '.join(names)}", _lead(runs)
    write_pages(where, title, lead, sections, positions=runs.positions)
    return where


def _sections(runs: Runs, reference: str, command: str) -> list[Section]:
    picture, dropped = forest(runs, reference), incidents(runs)
    return [
        Section("In short", [*_warnings(runs), *in_short(runs), scores(runs)]),
        Section(capital(runs.measure), [*score_curves(runs)]),
        Section("What reaching a target takes", [*costs(runs)]),
        Section("How sure", [*([picture] if picture else []), *pairs(runs, reference)]),
        Section("Loss, drift and consistency", [*measures(runs)]),
        Section("Failed and rejected replies", [dropped] if dropped else []),
        Section("Who holds what", partitions(list(runs.configs.values()))),
        Section("Settings", settings(runs)),
        origin(runs, command),
    ]


def _warnings(runs: Runs) -> list[Text]:
    return [*_unfinished(runs), *(Text(text, warns=True) for text in unapplied(runs.ends))]


def _unfinished(runs: Runs) -> list[Text]:
    if not runs.unfinished:
        return []
    begun = [f"{run.name} ({at} of {of})" for run, (at, of) in runs.unfinished.items() if at]
    waiting = [run.name for run, (at, _) in runs.unfinished.items() if not at]
    verb = "is" if len(runs.unfinished) == 1 else "are"
    text = (
        f"{len(runs.unfinished)} of {len(runs.configs)} runs {verb} not finished; what is below may"
        " change."
    )
    text += f" Rounds so far: {', '.join(begun)}." if begun else ""
    text += f" Not begun, and not counted below: {', '.join(waiting)}." if waiting else ""
    return [Text(text, warns=True)]


def _clients(data: Data) -> str:
    if data.clients is None:
        return "one owner alone" if data.only is not None else "one client per owner"
    if data.only is not None:
        return f"one of {data.clients} clients alone"
    return f"{data.clients} client{'s' * (data.clients > 1)}"


def _lead(runs: Runs) -> str:
    seeds = sorted(set(Counter(runs.ends["variant"]).values()))
    each = f"{seeds[0]}" if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
    data = {
        f"{c.data.dataset} on {_clients(c.data)}, {c.federation.cohort} a round": None
        for c in runs.configs.values()
    }
    count, variants = len(set(runs.titles.values())), len(runs.variants)
    algorithms = f"{count} algorithm{'s' * (count > 1)}" + (
        f" in {variants} variants" if variants > count else ""
    )
    until = f" The first {runs.limit} rounds." if runs.limit else ""
    return (
        f"{algorithms}, {each} seed{'s' * (each != '1')} each; {'; '.join(data)};"
        f" evaluated on the {runs.split} split.{until}"
    )
