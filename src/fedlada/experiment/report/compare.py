"""``fedlada compare``: the tables of a report on a terminal, or as LaTeX."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from rich.box import SIMPLE_HEAD as HEAD
from rich.console import Group, RenderableType
from rich.table import Table as TextTable
from rich.text import Text as Line

from ..results.scores import unapplied
from .page import Block, Table, Text
from .privacy import spent
from .problems import read_problems
from .tables import attacks, clients, costs, incidents, scores

__all__ = ["as_latex", "compared", "on_terminal"]

ESCAPED = {
    "\\": r"\textbackslash{}",
    **{character: f"\\{character}" for character in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "×": r"$\times$",
    "−": "$-$",
    "²": "$^2$",
    "–": "--",
    "\u00a0": "~",
}
SPECIAL = re.compile("|".join(map(re.escape, ESCAPED)))


def compared(
    directories: Sequence[Path],
    *,
    targets: Sequence[float] | None = None,
    rounds: int | None = None,
) -> list[Block]:
    """Return the scores, the costs of targets and attacks, epsilon, and the replies not used.

    If the runs are of several problems, each has its tables.
    """
    blocks: list[Block] = []
    for name, runs in read_problems(directories, targets, rounds).items():
        tables = [scores(runs), *clients(runs), *costs(runs)]
        tables += [*attacks(runs), *spent(runs), *incidents(runs)]
        blocks += [_headed(block, name) if name else block for block in tables]
        blocks += [Text(warning, warns=True) for warning in unapplied(runs.ends)]
    return blocks


def _headed(block: Block, problem: str) -> Block:
    if isinstance(block, Table):
        return replace(block, caption=f"{problem}: {block.caption}")
    return block


def on_terminal(blocks: Iterable[Block]) -> Group:
    """Return blocks as a terminal shows them."""
    return Group(*(part for block in blocks for part in _parts(block)))


def as_latex(blocks: Iterable[Block]) -> str:
    """Return the tables among the blocks as LaTeX, which needs the package booktabs."""
    tables = (_as_latex(block) for block in blocks if isinstance(block, Table))
    return "\n\n".join([r"% \usepackage{booktabs}", *tables])


def _parts(block: Block) -> Iterator[RenderableType]:
    if isinstance(block, Text):
        yield Line(block.text, "bold" if block.warns else "")
    elif isinstance(block, Table):
        table = TextTable(title=block.caption, title_justify="left", title_style="bold", box=HEAD)
        table.pad_edge, table.padding = False, (0, 1, 0, 0)
        for number, name in enumerate(block.columns):
            words = number == 0 or name in block.words
            longest = max(map(len, name.split()), default=0)  # a header wraps between words
            justify: Literal["left", "right"] = "left" if words else "right"
            table.add_column(name, justify=justify, overflow="fold", min_width=longest)
        for row in block.rows:
            table.add_row(*row)
        yield table
        if block.note:
            yield Line(block.note + "\n")


def _as_latex(table: Table) -> str:
    words = [n == 0 or name in table.words for n, name in enumerate(table.columns)]
    return "\n".join(
        [
            r"\begin{table}",
            r"\centering",
            rf"\caption{{{_escaped(table.caption)}}}",
            rf"\begin{{tabular}}{{{''.join('l' if left else 'r' for left in words)}}}",
            r"\toprule",
            _row(table.columns),
            r"\midrule",
            *map(_row, table.rows),
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table}",
        ]
    )


def _row(cells: Iterable[str]) -> str:
    return " & ".join(map(_escaped, cells)) + r" \\"


def _escaped(text: str) -> str:
    return SPECIAL.sub(lambda found: ESCAPED[found[0]], text.replace("`", ""))
