"""A partition as a figure and as a table: the examples of each client, by class if it has any."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Group
from rich.table import Table
from torch import Tensor

from ...data import Images, Summary
from ...results.plot import colour
from ..config.experiment import Experiment
from ..run.problem import holders, split
from .figures import new_figure, styled, svg_of
from .page import Block, Figure, Text

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

__all__ = ["holdings", "partition_svg", "partitions"]

SHOWN = 4  # maximum number of partitions
NAMED = 20  # maximum number of classes whose names fit


def partitions(configs: Sequence[Experiment]) -> list[Block]:
    """Return one figure for each distinct partition of the runs."""
    distinct = {
        repr((c.data, c.evaluate.split if c.evaluate.split == "validation" else "")): c
        for c in configs
    }
    blocks: list[Block] = []
    for number, config in enumerate(list(distinct.values())[:SHOWN], 1):
        if ":" in config.data.dataset:
            text = (
                f"Not drawn: a report does not import {config.data.dataset}, which makes the data;"
            )
            blocks.append(Text(f"{text} `fedlada partition FILE --draw` does."))
            continue
        try:
            blocks.append(_figure(config, f"partition-{number}"))
        except (ImportError, OSError) as error:
            return [Text(f"Not drawn, because the data cannot be read here: {error}", warns=True)]
    if len(distinct) > SHOWN:
        blocks.append(Text(f"{len(distinct) - SHOWN} more partitions are not drawn."))
    return blocks


def partition_svg(config: Experiment) -> str:
    """Return the figure of one experiment's partition as the text of an SVG file."""
    return _figure(config, "partition").svg


def _figure(config: Experiment, name: str) -> Figure:
    train, _ = split(config)
    summary = holders(config.data, train).summary()
    data = config.data
    kind = f"{data.dataset}, {data.partition}" + (
        "" if data.partition in ("iid", "natural") else f" with concentration {data.concentration}"
    )
    things = "images" if isinstance(train, Images) else "examples"
    first, *rest = str(summary).splitlines()
    with styled():
        figure = new_figure(2.8)
        if summary.histograms is None:
            what, how = f"{things} per client", "One bar per client, the largest first."
            _bars(figure, summary.sizes)
        else:
            what = f"{things} per class and client"
            how = "One column per client, sorted by its largest class."
            _heat_map(figure, summary.histograms, train.classes)
        alt = f"{what.capitalize()}: {kind}. {'; '.join(rest)}."
        figure.axes[0].set(title=what.capitalize(), xlabel=f"{len(summary.sizes)} clients")
        figure.axes[0].set_xticks([])
        svg = svg_of(figure, alt)
    return Figure(
        name=name,
        svg=svg,
        alt=alt,
        caption=f"{kind}, data.seed {data.seed}. {how} {first.partition(': ')[2]};"
        f" {'; '.join(rest)}.",
    )


def _bars(figure: Drawing, sizes: Tensor) -> None:
    heights = sorted((int(size) for size in sizes), reverse=True)
    figure.add_subplot().bar(range(len(heights)), heights, color=colour(0), width=0.8)


def _heat_map(figure: Drawing, counts: Tensor, classes: Sequence[str]) -> None:
    from matplotlib import colormaps

    clients = sorted(
        range(len(counts)),
        key=lambda client: (int(counts[client].argmax()), -int(counts[client].max())),
    )
    axes = figure.add_subplot()
    image = axes.imshow(
        counts[clients].T.numpy(),
        colormaps["Blues"].resampled(9),  # few colours make a small colour bar
        vmin=0,
        aspect="auto",
        interpolation="none",
    )
    if len(classes) <= NAMED:
        axes.set_yticks(range(len(classes)), classes)
    figure.colorbar(image)


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
