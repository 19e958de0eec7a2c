"""Who holds what, as a table of text."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from rich.console import Group
from rich.table import Table

from .cells import cells
from .config import Experiment
from .problem import holders, split
from .reading import read, table

__all__ = ["first", "holdings"]


def first(file: Path, changes: Iterable[str]) -> Experiment:
    """The experiment of a file, or the first of its sweep."""
    swept = "sweep" in table(file)
    return next(iter(cells(file, changes).values())) if swept else read(file, changes)


def holdings(config: Experiment, *, clients: int) -> Group:
    """The partition of an experiment: a summary, then its clients."""
    train, _ = split(config)
    summary = holders(config.data, train).summary()
    listed = Table("client", "images", box=None, header_style="bold")
    names = train.classes if len(train.classes) <= 10 else ()
    for name in names:
        listed.add_column(name, justify="right")
    if not names:
        listed.add_column("classes", justify="right")
        listed.add_column("largest class", justify="right")
    for client in range(min(clients, len(summary.sizes))):
        counts = [int(count) for count in summary.histograms[client]]
        top = max(range(len(counts)), key=counts.__getitem__)
        few = [str(sum(map(bool, counts))), f"{train.classes[top]} ({counts[top]})"]
        row = [str(count or "·") for count in counts] if names else few
        listed.add_row(str(client), str(int(summary.sizes[client])), *row)
    rest = len(summary.sizes) - clients
    return Group(str(summary), "", listed, f"and {rest} more clients" if rest > 0 else "")
