"""A partition as a text table: the examples that each client holds."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from rich.console import Group
from rich.table import Table

from ...data import Images, Summary
from ..config.cells import cells
from ..config.experiment import Experiment
from ..config.reading import read, table
from ..run.problem import holders, split

__all__ = ["first", "holdings"]


def first(file: Path, changes: Iterable[str]) -> Experiment:
    """Return the experiment of a file, or the first experiment of its sweep."""
    swept = "sweep" in table(file)
    return next(iter(cells(file, changes).values())) if swept else read(file, changes)


def holdings(config: Experiment, *, clients: int) -> Group:
    """Return the partition of an experiment: a summary, then a table of the first clients."""
    train, _ = split(config)
    held = holders(config.data, train)
    summary = held.summary()
    things = "images" if isinstance(train, Images) else "examples"
    named = ("client", "owner", things) if held.names else ("client", things)
    listed = Table(*named, box=None, header_style="bold")
    labels = _labels(summary, train.classes)
    for name in labels[0] if labels else ():
        listed.add_column(name, justify="right")
    for client in range(min(clients, len(held))):
        cells = [str(client), *held.names[client : client + 1], str(int(summary.sizes[client]))]
        listed.add_row(*cells, *(labels[1 + client] if labels else ()))
    rest = len(held) - clients
    return Group(str(summary), "", listed, f"and {rest} more clients" if rest > 0 else "")


def _labels(summary: Summary, classes: tuple[str, ...]) -> list[list[str]]:
    """Return a row of titles and a row per client about its labels; empty without classes."""
    if summary.histograms is None:
        return []
    histograms: list[list[int]] = summary.histograms.tolist()
    if len(classes) <= 10:
        shown = classes[: summary.histograms.shape[1]]
        return [[*shown], *([str(count or "·") for count in counts] for counts in histograms)]
    rows = [["classes", "largest class"]]
    for counts in histograms:
        top = max(range(len(counts)), key=counts.__getitem__)
        rows.append([str(sum(map(bool, counts))), f"{classes[top]} ({counts[top]})"])
    return rows
