"""The report of a tournament: who won, ranks, curves of the finals, tries and rungs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ..report.figures import scores as score_curves
from ..report.page import Block, Code, Figure, Points, Section, Table, Text, write_pages
from ..report.pairs import pairs, rule
from ..report.runs import Runs
from ..report.tables import costs, scores
from ..results.scores import shown
from .file import Rules, Tournament
from .stages import Course, Verdict, mean_ranks, verdict

__all__ = ["tournament_page", "unfinished", "verdicts"]

RANKS = (
    "Rank 1 is the best score, and equal scores share their rank. The rank on a problem is that in"
    " the last stage in which all contestants ran: the finals (mean over seeds) if all are in them,"
    " else the last rung (validation data, one seed). A mean over a few problems shows who does"
    " well on these, not who is better."
)
EQUAL = (
    "All stop when the contestant with the fastest rounds has done all of its rounds. The columns"
    " after the ranks have the time of a round, divided by that of the fastest contestant's: the"
    " tenth percentile of all rounds on the machine that ran them, so this table needs a machine"
    " that does nothing else."
)
EDGES = "Chosen at the edge of those tried, so a better one may lie beyond:"


def verdicts(courses: Sequence[Course], places: Sequence[str]) -> dict[str, tuple[Runs, Verdict]]:
    """Return the runs and the verdict of every contest of which a seed of the finals is done."""
    results = {}
    for one in courses:
        if one.finals:
            runs = one.runs(places, places)
            results[one.contest.name] = (runs, verdict(runs))
    return results


def unfinished(courses: Sequence[Course]) -> list[str]:
    """Return a sentence for each contest that is not over."""
    return [
        f"{one.contest.name}: there are no finals, because rules.edges is 'refuse' and these are at"
        f" the edge of those tried: {one.edges()}; list values beyond it and run this again."
        if one.next is None
        else f"{one.contest.name}: {len(one.done)} stages are done, and {one.next.title} (to round"
        f" {one.next.rounds}) is next."
        for one in courses
        if one.refused or one.next is not None
    ]


def tournament_page(
    tournament: Tournament, courses: Sequence[Course], *, file: Path, out: Path, command: str
) -> list[Path]:
    """Write the report on all complete stages, and return its files."""
    places = tournament.contestants
    results = verdicts(courses, places)
    sections = [
        Section("Summary", _summary(courses, results)),
        Section("Ranks", _ranks(courses, results) if results else []),
        *(_contest(one, *results[one.contest.name]) for one in courses if one.finals),
        Section("How sure", _sure(results)),
        Section("Tries and rungs", _tries(courses)),
        Section("Rules", [Points(_rules(tournament))]),
        Section(
            "How to repeat it",
            [
                Code(caption="The command, which also resumes the tournament:", text=command),
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
    return write_pages(out, f"Tournament: {tournament.name}", lead, sections)


def _summary(courses: Sequence[Course], results: Mapping[str, tuple[Runs, Verdict]]) -> list[Block]:
    points = [f"{name}: {result.sentence}" for name, (_, result) in results.items()]
    for one in courses:
        if not one.finals and (leading := one.leading()):
            scores = ", ".join(f"{name} {score}" for name, score in leading.items())
            points.append(
                f"{one.contest.name}: no finals yet; on validation data, one seed, at round"
                f" {one.rungs[-1].rounds}: {scores}."
            )
    blocks: list[Block] = [Points(tuple(points))] if points else []
    if rest := unfinished(courses):
        text = "The tournament is not over; only complete stages count. " + " ".join(rest)
        blocks.insert(0, Text(text, warns=True))
    told = [
        f"{one.contest.name}: {at}." for one in courses if not one.refused and (at := one.edges())
    ]
    if told:
        blocks.append(Text(" ".join([EDGES, *told]), warns=True))
    if any("[" in point for point in points):
        blocks.append(
            Text(
                "± is the standard deviation over seeds. In parentheses: the mean difference over"
                " the same seeds and its 95 % interval by Student's paired t."
                f" {' '.join(dict.fromkeys(rule(runs.scale) for runs, _ in results.values()))}"
                " The best of many means is partly luck, which favours its leads."
            )
        )
    return blocks


def _ranks(courses: Sequence[Course], results: Mapping[str, tuple[Runs, Verdict]]) -> list[Block]:
    first = {name: {result.winner, *result.level} for name, (_, result) in results.items()}
    rows = [
        (
            contestant,
            f"{sum(ranks.values()) / len(ranks):.2f}",
            *(f"{ranks[name]:.1f}" for name in results),
            f"{sum(contestant in first[name] for name in results)} of {len(results)}",
        )
        for contestant, ranks in mean_ranks([one for one in courses if one.finals]).items()
    ]
    return [
        Table(
            caption="Ranks over problems",
            columns=("contestant", "mean rank", *results, "won or level"),
            rows=tuple(rows),
            note=RANKS,
        ),
        _equal_compute([one for one in courses if one.finals]),
    ]


def _equal_compute(courses: Sequence[Course]) -> Table:
    names = [one.contest.name for one in courses]
    rows = [
        (
            contestant,
            f"{sum(ranks.values()) / len(ranks):.2f}",
            *(f"{ranks[name]:.1f}" for name in names),
            *(f"{one.costs[contestant]:.2f}" for one in courses),
        )
        for contestant, ranks in mean_ranks(courses, equal_compute=True).items()
    ]
    return Table(
        caption="Ranks at equal compute",
        columns=("contestant", "mean rank", *names, *(f"{name}, time" for name in names)),
        rows=tuple(rows),
        note=EQUAL,
    )


def _contest(one: Course, runs: Runs, result: Verdict) -> Section:
    """Return the section of a problem: the verdict, scores, curves and costs of targets."""
    name = one.contest.name
    blocks: list[Block] = [Text(f"{result.sentence[0].upper()}{result.sentence[1:]}")]
    blocks.append(scores(runs))
    if (last := one.last_in_finals) > 1:
        blocks.append(Text(f"Final is the mean of the last {last} evaluations of a run."))
    blocks += [
        replace(block, name=f"{name}-{block.name}") if isinstance(block, Figure) else block
        for block in score_curves(runs)
    ]
    blocks += costs(runs)
    blocks += [block for block in pairs(runs, result.winner) if isinstance(block, Table)]
    return Section(name, blocks)


def _sure(results: Mapping[str, tuple[Runs, Verdict]]) -> list[Block]:
    """Return the note that all tables of differences share."""
    notes = [b for runs, result in results.values() for b in pairs(runs, result.winner)]
    return [next(block for block in notes if isinstance(block, Text))] if notes else []


def _tries(courses: Sequence[Course]) -> list[Block]:
    """Return a table per contest: the validation score of every try at each rung it reached."""
    tables: list[Block] = []
    for one in (one for one in courses if one.rungs):
        objective, chosen = one.rungs[0].objective(), one.chosen()
        stages = [stage.scores(one.last) for stage in one.rungs]
        rows = []
        for contestant, runs in one.rungs[0].by.items():
            for run in runs:
                cells = [shown(s[run], objective.scale) if run in s else "out" for s in stages]
                mark = ": ".join(filter(None, ("chosen", chosen[run]))) if run in chosen else ""
                rows.append((contestant, run.name.removeprefix(f"{contestant}-"), *cells, mark))
        rounds = (f"round {stage.rounds}" for stage in one.rungs)
        tables.append(
            Table(
                caption=f"{one.contest.name}: validation {objective.title} of every try"
                f"{objective.scale.heading(objective.title)}",
                columns=("contestant", "settings", *rounds, "chosen"),
                rows=tuple(rows),
                words=("settings", "chosen"),
                note="Lowest and highest: the chosen value is at the edge of those tried, so a"
                " better one may lie beyond.",
            )
        )
    return tables


def _rules(tournament: Tournament) -> tuple[str, ...]:
    rules, contest = tournament.rules, tournament.contests[0]
    in_finals = (
        f", in the finals of those in the last {rules.window} rounds" if rules.window else ""
    )
    return (
        f"Equal tries: every contestant has {contest.each} settings on every problem, with one seed"
        f" ({rules.tuning_seed}), judged on validation data that no client trains on.",
        f"Rungs at {' and '.join(f'{100 * share:g} %' for share in rules.rungs)} of the rounds:"
        " the better half of each contestant's tries resumes from its checkpoints, and after the"
        " last rung only the best.",
        f"The best settings start over with the seeds {', '.join(map(str, rules.seeds))}, on all"
        " training data, and are judged on test data.",
        *_partitions(tournament),
        *_finalists(rules, len(tournament.contestants)),
        f"A score is the mean of the last {rules.last} evaluations{in_finals}.",
        "Problems take turns, stage by stage; only complete stages are in this report.",
    )


def _partitions(tournament: Tournament) -> list[str]:
    """Return sentences about the partitions of the finals."""
    words = {
        False: "Every seed has another partition of the data",
        True: "All seeds share one partition, which the file sets",
    }
    names = {
        shared: [c.name for c in tournament.contests if c.one_partition == shared]
        for shared in words
    }
    return [f"{words[shared]}: {', '.join(own)}." for shared, own in names.items() if own]


def _finalists(rules: Rules, contestants: int) -> list[str]:
    """Return the sentence about the contestants in the finals."""
    if not rules.finalists:
        return ["All contestants run the finals."]
    always = ""
    if rules.always:
        always = f", and beside them, whatever their score, {', '.join(rules.always)}"
    return [
        f"{min(rules.finalists, contestants)} of {contestants} contestants run the finals of a"
        f" problem: those with the best validation scores at the last rung{always}."
    ]
