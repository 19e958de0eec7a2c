"""The figure of a partition: the number of examples of each client, by class if there are any."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from ...data import Images, Summary
from ..config.experiment import Experiment
from ..run.problem import holders, split
from .blocks import Block, Figure, Text
from .figures import NARROW, WIDTH, new_figure, plain_axes, styled, svg_of
from .labels import width_of
from .style import MUTED, alone, colour

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Drawing

__all__ = ["drawn", "partitions"]

SHOWN = 4  # maximum number of partitions
BLUE = (0.13, 0.53, 0.80)  # more opaque where a client holds more; fits any background
HEIGHT = 2.9  # inches
NAMED = 20  # maximum number of classes whose names fit


def partitions(configs: list[Experiment]) -> list[Block]:
    """Return one figure for each distinct partition of the runs."""
    distinct = {
        repr((c.data, c.evaluate.split if c.evaluate.split == "validation" else "")): c
        for c in configs
    }
    blocks: list[Block] = []
    for number, config in enumerate(list(distinct.values())[:SHOWN], 1):
        if ":" in config.data.dataset:
            text = f"Not drawn: a report does not import {config.data.dataset}, where the data are"
            blocks.append(Text(f"{text} from; fedlada partition FILE --draw does."))
            continue
        try:
            blocks.append(_figure(config, f"partition-{number}"))
        except (ImportError, OSError) as error:
            return [Text(f"Not drawn, because the data cannot be read here: {error}", warns=True)]
    if len(distinct) > SHOWN:
        blocks.append(Text(f"{len(distinct) - SHOWN} more partitions are not drawn."))
    return blocks


def drawn(config: Experiment) -> str:
    """Return the figure of one experiment's partition as the text of an SVG file."""
    return alone(_figure(config, "partition").svg)


def _figure(config: Experiment, name: str) -> Figure:
    train, _ = split(config)
    found = holders(config.data, train).summary()
    data = config.data
    kind = f"{data.dataset}, {data.partition}" + (
        "" if data.partition in ("iid", "natural") else f" with concentration {data.concentration}"
    )
    things = "images" if isinstance(train, Images) else "examples"
    first, *rest = str(found).splitlines()
    if found.histograms is None:
        alt = f"Bars of {things} per client: {kind}. {'; '.join(rest)}."
        svg, narrow = (_bars(found, things, alt, width) for width in (WIDTH, NARROW))
        how = f"One bar per client, the largest first; its height is the number of {things}."
    else:
        alt = f"Heat map of {things} per class and client: {kind}. {'; '.join(rest)}."
        svg, narrow = (
            _heat_map(found.histograms, train.classes, things, alt, width)
            for width in (WIDTH, NARROW)
        )
        how = (
            "One column per client, in the order of their largest class; the stronger the colour,"
            f" the more {things} of the class (row) it holds."
        )
    return Figure(
        name=name,
        svg=svg,
        narrow=narrow,
        alt=alt,
        caption=f"Who holds what: {kind}, data.seed {data.seed}. {how}"
        f" {first.partition(': ')[2]}; {'; '.join(rest)}.",
    )


def _axes(figure: Drawing, left: float, right: float) -> Axes:
    """Return axes that leave so many inches free at the sides."""
    wide = figure.get_figwidth()
    return figure.add_axes((left / wide, 0.16, 1 - (left + right) / wide, 0.72))


def _bars(found: Summary, things: str, alt: str, width: float) -> str:
    sizes = sorted((int(size) for size in found.sizes), reverse=True)
    with styled():
        figure = new_figure(HEIGHT, width=width)
        left = 0.1 + width_of(str(sizes[0])) / 72
        axes = _axes(figure, left, 0.0)
        axes.bar(range(len(sizes)), sizes, color=colour(0), width=0.8)
        across = f"{len(sizes)} clients"
        plain_axes(axes, f"{things.capitalize()} per client", across, left=left)
        axes.set_xticks([])
        return svg_of(figure, alt)


def _heat_map(counts: Tensor, classes: tuple[str, ...], things: str, alt: str, width: float) -> str:
    from matplotlib.colors import LinearSegmentedColormap

    clients = sorted(
        range(len(counts)),
        key=lambda client: (int(counts[client].argmax()), -int(counts[client].max())),
    )
    image = counts[clients].T.numpy()
    most = int(image.max())
    with styled():
        figure = new_figure(HEIGHT, width=width)
        colours = LinearSegmentedColormap.from_list("held", [(*BLUE, 0.0), (*BLUE, 1.0)])
        named = len(classes) <= NAMED
        names = classes if named else (str(len(classes)),)
        left, right = 0.1 + max(map(width_of, names)) / 72, 0.3 + width_of(str(most)) / 72
        axes = _axes(figure, left, right)
        axes.imshow(image, colours, vmin=0, vmax=most, aspect="auto", interpolation="none")
        title = f"{things.capitalize()} per class and client"
        plain_axes(axes, title, f"{len(clients)} clients", left=left)
        axes.set_xticks([])
        if named:
            axes.set_yticks(range(len(classes)), classes, ha="left")
            axes.tick_params(axis="y", pad=72 * left)
        scale = _axes(figure, width - right + 0.12, right - 0.24)
        ramp = [[step] for step in range(64, -1, -1)]
        scale.imshow(ramp, colours, aspect="auto", interpolation="none")
        scale.set_xticks([])
        scale.set_yticks([0, 64], [str(most), "0"])
        scale.tick_params(length=0, pad=3, labelright=True, labelleft=False)
        for box in (axes, scale):
            for spine in box.spines.values():
                spine.set(visible=True, color=MUTED, linewidth=0.6)
        return svg_of(figure, alt)
