"""``fedlada report``: writes a report on runs as one HTML page and as Markdown with figures."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ..config.sections import Data
from ..packed import directory_of
from ..results.frames import configurations
from ..results.scores import capital, unapplied
from .figures import measures, scores as score_curves, styled
from .overview import overview
from .page import HTML, MARKDOWN, Figure, Section, Text, anchor, write_pages
from .pairs import forest, has_reference, pairs, reference_of
from .partition import partitions
from .privacy import against_epsilon, spent
from .problems import read_problems
from .runs import Runs
from .summary import summary
from .tables import attacks, clients, costs, incidents, provenance, scores, settings

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
    problems = read_problems(directories, targets, rounds)
    compared = _references(problems, reference)
    where = directory_of(directories[0]) / "report" if out is None else out
    words = ["fedlada", "report", *map(str, directories), "--out", str(where)]
    words += [word for target in targets or () for word in ("--target", f"{target:g}")]
    words += ["--reference", reference] if reference else []
    words += ["--rounds", str(rounds)] if rounds else []
    configs = configurations(directories)
    names = {config.name: None for config in configs.values()}
    title = f"Comparison: {', '.join(names)}"
    sections = [Section("Overview", overview(problems))] if len(problems) > 1 else []
    for name, runs in problems.items():
        sections += [_in_part(one, name) for one in _sections(runs, compared[name])]
    sections += [
        Section("Partition", partitions(list(configs.values()))),
        Section("How to repeat it", provenance(configs, shlex.join(words))),
    ]
    write_pages(where, title, _lead(problems), sections)
    return where


def _references(problems: Mapping[str, Runs], wanted: str | None) -> dict[str, str]:
    """Return the variant to compare with on each problem; the wanted one where it has run."""
    having = [runs for runs in problems.values() if has_reference(runs, wanted)]
    if not having:
        reference_of(next(iter(problems.values())), wanted)  # says what there is
    return {
        name: reference_of(runs, wanted if runs in having else None)
        for name, runs in problems.items()
    }


def _sections(runs: Runs, reference: str) -> list[Section]:
    intervals = forest(runs, reference)
    return [
        Section("Summary", [*_warnings(runs), *summary(runs), scores(runs)]),
        Section(capital(runs.measure), score_curves(runs)),
        Section("Clients", clients(runs)),
        Section("Cost of each target", costs(runs)),
        Section("Cost of each attack", attacks(runs)),
        Section("Privacy", [*against_epsilon(runs), *spent(runs)]),
        Section("How sure", [*([intervals] if intervals else []), *pairs(runs, reference)]),
        Section("Loss, drift and consistency", measures(runs)),
        Section("Failed and rejected replies", incidents(runs)),
        Section("Settings", settings(runs)),
    ]


def _in_part(section: Section, part: str) -> Section:
    """Return the section in a part of the report; the names of its figures begin with that part."""
    if not part:
        return section
    blocks = [
        replace(block, name=f"{anchor(part)}-{block.name}") if isinstance(block, Figure) else block
        for block in section.blocks
    ]
    return replace(section, blocks=blocks, part=part)


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


def _lead(problems: Mapping[str, Runs]) -> str:
    every = list(problems.values())
    variants = dict.fromkeys(v for runs in every for v in runs.variants)
    titles = {title for runs in every for title in runs.titles.values()}
    counts = [count for runs in every for count in Counter(runs.ends["variant"]).values()]
    least, most = min(counts), max(counts)
    each = f"{least}" if least == most else f"{least} to {most}"
    data = {
        f"{c.data.dataset} on {_clients(c.data)}, {c.federation.cohort} a round": None
        for runs in every
        for c in runs.configs.values()
    }
    algorithms = f"{len(titles)} algorithm{'s' * (len(titles) > 1)}" + (
        f" in {len(variants)} variants" if len(variants) > len(titles) else ""
    )
    algorithms += f" on {len(every)} problems" if len(every) > 1 else ""
    limit = every[0].limit
    until = f" Only the first {limit} rounds count." if limit else ""
    splits = dict.fromkeys(runs.split for runs in every)
    return (
        f"{algorithms}, {each} seed{'s' * (each != '1')} each; {'; '.join(data)};"
        f" evaluated on the {' and '.join(splits)} split.{until}"
    )


def _clients(data: Data) -> str:
    if data.clients is None:
        return "one owner alone" if data.only is not None else "one client per owner"
    if data.only is not None:
        return f"one of {data.clients} clients alone"
    return f"{data.clients} client{'s' * (data.clients > 1)}"
