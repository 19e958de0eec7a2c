"""``fedlada report``: writes a report on runs as one HTML page and as Markdown with figures."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from ..config.sections import Data
from ..packed import directory_of
from ..results.scores import capital, unapplied
from .clients import clients
from .figures import measures, scores as score_curves, styled
from .page import HTML, MARKDOWN, Section, Text, write_pages
from .pairs import forest, pairs, reference_of
from .partition import partitions
from .runs import Runs
from .summary import summary
from .tables import attacks, costs, incidents, provenance, scores, settings

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
    compared = reference_of(runs, reference)
    where = directory_of(directories[0]) / "report" if out is None else out
    words = ["fedlada", "report", *map(str, directories), "--out", str(where)]
    words += [word for target in targets or () for word in ("--target", f"{target:g}")]
    words += ["--reference", reference] if reference else []
    words += ["--rounds", str(rounds)] if rounds else []
    names = {config.name: None for config in runs.configs.values()}
    title = f"Comparison: {', '.join(names)}"
    write_pages(where, title, _lead(runs), _sections(runs, compared, shlex.join(words)))
    return where


def _sections(runs: Runs, reference: str, command: str) -> list[Section]:
    intervals = forest(runs, reference)
    return [
        Section("Summary", [*_warnings(runs), *summary(runs), scores(runs)]),
        Section(capital(runs.measure), score_curves(runs)),
        Section("Clients", clients(runs)),
        Section("Cost of each target", costs(runs)),
        Section("Cost of each attack", attacks(runs)),
        Section("How sure", [*([intervals] if intervals else []), *pairs(runs, reference)]),
        Section("Loss, drift and consistency", measures(runs)),
        Section("Failed and rejected replies", incidents(runs)),
        Section("Partition", partitions(list(runs.configs.values()))),
        Section("Settings", settings(runs)),
        Section("How to repeat it", provenance(runs, command)),
    ]


def _warnings(runs: Runs) -> list[Text]:
    texts = unapplied(runs.ends)
    if runs.unfinished:
        begun = [f"{run.name} ({at} of {of})" for run, (at, of) in runs.unfinished.items() if at]
        waiting = [run.name for run, (at, _) in runs.unfinished.items() if not at]
        verb = "is" if len(runs.unfinished) == 1 else "are"
        text = f"{len(runs.unfinished)} of {len(runs.configs)} runs {verb} not finished; these"
        text += " results may change."
        text += f" Rounds so far: {', '.join(begun)}." if begun else ""
        text += f" Not started and not counted: {', '.join(waiting)}." if waiting else ""
        texts.insert(0, text)
    return [Text(text, warns=True) for text in texts]


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
    until = f" Only the first {runs.limit} rounds count." if runs.limit else ""
    return (
        f"{algorithms}, {each} seed{'s' * (each != '1')} each; {'; '.join(data)};"
        f" evaluated on the {runs.split} split.{until}"
    )


def _clients(data: Data) -> str:
    if data.clients is None:
        return "one owner alone" if data.only is not None else "one client per owner"
    if data.only is not None:
        return f"one of {data.clients} clients alone"
    return f"{data.clients} client{'s' * (data.clients > 1)}"
