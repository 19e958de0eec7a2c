"""The report of a tournament: who won, ranks, curves of the finals, tries and rungs."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ..report.blocks import Block, Code, Figure, Points, Section, Table, Text, Views
from ..report.curves import scores as score_curves
from ..report.pages import write_pages
from ..report.pairs import pairs
from ..report.runs import Runs
from ..report.tables import costs, scores
from ..results.order import shown
from .file import Tournament
from .rules import Rules
from .verdict import Course, Verdict, mean_ranks, verdict

__all__ = ["left", "tournament_page", "verdicts"]

DRAWN = 8
"""Largest number of lines in a figure: the best of the contest."""
RANKS = (
    "Rank 1 is the best score; the rank on a problem is the mean over its seeds, equal scores share"
    " theirs, and who was not in the finals has the mean of the ranks behind them. A mean over so"
    " few problems says who does well on these, not who is better."
)


def verdicts(courses: Sequence[Course], places: Sequence[str]) -> dict[str, tuple[Runs, Verdict]]:
    """Return the runs and the verdict of every contest of which a seed of the finals is done."""
    found = {}
    for one in courses:
        if one.finals:
            runs = one.runs(places, places)
            found[one.contest.name] = (runs, verdict(runs))
    return found


def left(courses: Sequence[Course]) -> list[str]:
    """Return a sentence for each contest that is not over."""
    return [
        f"{one.contest.name}: {len(one.done)} stages are done, and {one.next.title} (to round"
        f" {one.next.rounds}) is next."
        for one in courses
        if one.next is not None
    ]


def tournament_page(
    tournament: Tournament, courses: Sequence[Course], *, file: Path, out: Path, command: str
) -> list[Path]:
    """Write the report on everything that is done, and return its files."""
    places = tournament.contestants
    found = verdicts(courses, places)
    sections = [
        Section("In short", _short(courses, found)),
        Section("Ranks", _ranks(found, places) if found else []),
        *(_contest(one, *found[one.contest.name]) for one in courses if one.finals),
        Section("How sure", _sure(found)),
        Section("Tries and rungs", _tries(courses)),
        Section("Rules", [Points(_rules(tournament))]),
        Section(
            "How to repeat it",
            [
                Code(caption="What was typed, which also goes on:", text=command),
                Code(caption="The file", text=file.read_text(), language="toml", folded=True),
            ],
        ),
    ]
    lead = (
        f"{len(places)} contestants on {len(courses)} problem{'s' * (len(courses) > 1)}:"
        f" {', '.join(one.contest.name for one in courses)}. Each had"
        f" {courses[0].contest.each} tries on validation data, and its best settings then ran"
        f" with {len(tournament.rules.seeds)} other seeds, judged on test data."
    )
    positions = {name: place for place, name in enumerate(places)}
    title = f"Tournament: {tournament.name}"
    return write_pages(out, title, lead, sections, positions=positions)


def _short(courses: Sequence[Course], found: Mapping[str, tuple[Runs, Verdict]]) -> list[Block]:
    points = [f"{name}: {result.sentence()}" for name, (_, result) in found.items()]
    for one in courses:
        if not one.finals and (leading := one.leading()):
            told = ", ".join(f"{name} {score}" for name, score in leading.items())
            points.append(
                f"{one.contest.name}: no finals yet; on validation data, one seed, at round"
                f" {one.rungs[-1].rounds}: {told}."
            )
    blocks: list[Block] = [Points(tuple(points))] if points else []
    if rest := left(courses):
        text = "The tournament is not over; only whole stages count. " + " ".join(rest)
        blocks.insert(0, Text(text, warns=True))
    if any("[" in point for point in points):
        blocks.append(
            Text(
                "In parentheses: the difference, mean over the same seeds, and its 95 % interval by"
                " Student's paired t; level means that the interval holds 0. It is not widened for"
                " the number of comparisons."
            )
        )
    return blocks


def _ranks(found: Mapping[str, tuple[Runs, Verdict]], contestants: Sequence[str]) -> list[Block]:
    table = mean_ranks({name: runs for name, (runs, _) in found.items()}, contestants)
    first = {name: {result.winner, *result.level} for name, (_, result) in found.items()}
    rows = [
        (
            contestant,
            f"{sum(own.values()) / len(own):.2f}",
            *(f"{own[name]:.1f}" for name in found),
            f"{sum(contestant in first[name] for name in found)} of {len(found)}",
        )
        for contestant, own in table.items()
    ]
    return [
        Table(
            caption="Ranks over problems",
            columns=("contestant", "mean rank", *found, "won or level"),
            rows=tuple(rows),
            note=RANKS,
        )
    ]


def _contest(one: Course, runs: Runs, result: Verdict) -> Section:
    """Return the section of a problem: the verdict, scores, curves and costs of targets."""
    name, places = one.contest.name, runs.places
    best = runs.by_score[:DRAWN]
    drawn = one.runs([p for p in places if p in best], places)
    blocks: list[Block] = [Text(f"{result.sentence()[0].upper()}{result.sentence()[1:]}")]
    blocks.append(scores(runs))
    if one.last > 1:
        blocks.append(Text(f"Final is the mean of the last {one.last} evaluations of a run."))
    if len(best) < len(runs.variants):
        blocks.append(Text(f"Drawn are the {len(best)} best; the table has all."))
    blocks += [_named(block, name) for block in score_curves(drawn)]
    blocks += costs(runs)
    blocks += [block for block in pairs(runs, result.winner) if isinstance(block, Table)]
    return Section(name, blocks)


def _sure(found: Mapping[str, tuple[Runs, Verdict]]) -> list[Block]:
    """Return once what all tables of differences have in common."""
    notes = [b for runs, result in found.values() for b in pairs(runs, result.winner)]
    return [next(block for block in notes if isinstance(block, Text))] if notes else []


def _named(block: Block, prefix: str) -> Block:
    """Return a figure under a name of its own on a page with several contests."""
    if isinstance(block, Figure):
        return replace(block, name=f"{prefix}-{block.name}")
    if isinstance(block, Views):
        figures = {
            word: replace(figure, name=f"{prefix}-{figure.name}")
            for word, figure in block.figures.items()
        }
        return replace(block, name=f"{prefix}-{block.name}", figures=figures)
    return block


def _tries(courses: Sequence[Course]) -> list[Block]:
    """Return a table per contest: the validation score of every try at each rung it reached."""
    tables: list[Block] = []
    for one in courses:
        if not one.rungs:
            continue
        at, objective = [stage.scores(one.last) for stage in one.rungs], one.rungs[0].objective()
        scale = objective.scale
        rows = []
        for contestant, runs in one.rungs[0].by.items():
            for run in runs:
                reached = [scores[run] for scores in at if run in scores]
                cells = [shown(score, scale) for score in reached] + ["out"] * (
                    len(at) - len(reached)
                )
                rows.append((contestant, run.name.removeprefix(f"{contestant}-"), *cells))
        tables.append(
            Table(
                caption=f"{one.contest.name}: validation {objective.title} of every try"
                f"{scale.heading(objective.title)}",
                columns=(
                    "contestant",
                    "settings",
                    *(f"round {stage.rounds}" for stage in one.rungs),
                ),
                rows=tuple(rows),
                words=("settings",),
            )
        )
    return tables


def _rules(tournament: Tournament) -> tuple[str, ...]:
    rules, contest = tournament.rules, tournament.contests[0]
    return (
        f"Equal tries: every contestant has {contest.each} settings on every problem, with one seed"
        f" ({rules.tuning_seed}), judged on validation data that no client trains on.",
        f"Rungs at {' and '.join(f'{100 * share:g} %' for share in rules.rungs)} of the rounds:"
        " the better half of each contestant's own tries goes on from its checkpoint, at the last"
        " rung the best alone.",
        f"The best settings run anew with the seeds {', '.join(map(str, rules.seeds))}, on all"
        " training data, judged on test data that nobody has seen before.",
        *_finalists(rules, len(tournament.contestants)),
        f"A score is the mean of the last {rules.last} evaluations.",
        "Work goes stage by stage, and problems take turns; a stage that is not whole is not in"
        " this report.",
    )


def _finalists(rules: Rules, contestants: int) -> list[str]:
    """Return the sentence about who runs the finals."""
    if not rules.finalists:
        return ["No contestant is ever out; only settings are."]
    always = f" {', '.join(rules.always)} in any case, the others" if rules.always else " those"
    return [
        f"{rules.in_finals(contestants)} of {contestants} contestants run the finals of a"
        f" problem:{always} by their validation score at the last rung."
    ]


def repeat(file: Path, changes: Sequence[str], out: Path) -> str:
    """Return the command that makes or continues the tournament."""
    return shlex.join(["fedlada", "tournament", str(file), *changes, "--out", str(out)])
