"""``fedlada compare``: the tables of a report on a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.box import SIMPLE_HEAD as HEAD
from rich.console import Group, RenderableType
from rich.table import Table as TextTable
from rich.text import Text as Line

from ..results.scores import unapplied
from .clients import clients
from .page import Block, Table, Text
from .runs import Runs
from .tables import attacks, costs, incidents, scores

__all__ = ["comparison"]


def comparison(
    directories: Sequence[Path],
    *,
    targets: Sequence[float] | None = None,
    rounds: int | None = None,
) -> Group:
    """Return the scores, the costs of targets and attacks, and the replies that were not used."""
    runs = Runs.read(directories, targets, rounds)
    blocks = [scores(runs), *clients(runs), *costs(runs), *attacks(runs), *incidents(runs)]
    parts = [part for block in blocks for part in _parts(block)]
    return Group(*parts, *(Line(warning, "bold") for warning in unapplied(runs.ends)))


def _parts(block: Block) -> Iterator[RenderableType]:
    if isinstance(block, Text):
        yield Line(block.text)
    elif isinstance(block, Table):
        table = TextTable(title=block.caption, title_justify="left", title_style="bold", box=HEAD)
        table.pad_edge, table.padding = False, (0, 1, 0, 0)
        for number, name in enumerate(block.columns):
            words = number == 0 or name in block.words
            table.add_column(name, justify="left" if words else "right", overflow="fold")
        for row in block.rows:
            table.add_row(*row)
        yield table
        if block.note:
            yield Line(block.note + "\n")
