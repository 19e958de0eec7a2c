"""The picture of a partition: how many images of each class each client holds."""

from __future__ import annotations

from ..data import Summary
from .config import Experiment
from .figures import new_figure, plain_axes, styled, svg_of
from .problem import holders, split
from .report_blocks import Block, Figure, Text
from .report_ink import MUTED, alone

__all__ = ["drawn", "partitions"]

SHOWN = 4  # partitions at most
BLUE = (0.13, 0.53, 0.80)  # opaque where a client holds most, so that any paper shows through
NAMED = 20  # classes at most whose names fit


def partitions(configs: list[Experiment]) -> list[Block]:
    """One figure for each way in which the runs split their data."""
    distinct = {
        repr((c.data, c.evaluate.split if c.evaluate.split == "validation" else "")): c
        for c in configs
    }
    blocks: list[Block] = []
    for number, config in enumerate(list(distinct.values())[:SHOWN], 1):
        try:
            blocks.append(_figure(config, f"partition-{number}"))
        except (ImportError, OSError) as error:
            return [Text(f"Not drawn, because the data cannot be read here: {error}", warns=True)]
    if len(distinct) > SHOWN:
        blocks.append(Text(f"{len(distinct) - SHOWN} more partitions are not drawn."))
    return blocks


def drawn(config: Experiment) -> str:
    """The picture of one experiment's partition, as an SVG file."""
    return alone(_figure(config, "partition").svg)


def _figure(config: Experiment, name: str) -> Figure:
    train, _ = split(config)
    found = holders(config.data, train).summary()
    kind = f"{config.data.dataset}, {config.data.partition}" + (
        "" if config.data.partition == "iid" else f" with concentration {config.data.concentration}"
    )
    first, *rest = str(found).splitlines()
    alt = f"Heat map of images per class and client: {kind}. {'; '.join(rest)}."
    return Figure(
        name=name,
        svg=_drawn(found, train.classes, alt),
        alt=alt,
        caption=f"Who holds what: {kind}, data.seed {config.data.seed}. One column per client, in"
        " the order of their largest class; the stronger the colour, the more images of the"
        f" class (row) it holds. {first.partition(': ')[2]}; {'; '.join(rest)}.",
    )


def _drawn(found: Summary, classes: tuple[str, ...], alt: str) -> str:
    from matplotlib.colors import LinearSegmentedColormap

    counts = found.histograms
    clients = sorted(
        range(len(counts)),
        key=lambda client: (int(counts[client].argmax()), -int(counts[client].max())),
    )
    image = counts[clients].T.numpy()
    most = int(image.max())
    with styled():
        figure = new_figure(2.9)
        colours = LinearSegmentedColormap.from_list("held", [(*BLUE, 0.0), (*BLUE, 1.0)])
        named = len(classes) <= NAMED
        left = 0.05 + (max(map(len, classes)) if named else 4) * 0.0066
        axes = figure.add_axes((left, 0.16, 0.93 - left, 0.72))
        axes.imshow(image, colours, vmin=0, vmax=most, aspect="auto", interpolation="none")
        plain_axes(axes, "Images per class and client", f"{len(clients)} clients")
        axes.set_xticks([])
        if named:
            axes.set_yticks(range(len(classes)), classes)
        scale = figure.add_axes((0.95, 0.16, 0.012, 0.72))
        ramp = [[step] for step in range(64, -1, -1)]
        scale.imshow(ramp, colours, aspect="auto", interpolation="none")
        scale.set_xticks([])
        scale.set_yticks([0, 64], [str(most), "0"])
        scale.tick_params(length=0, pad=3, labelright=True, labelleft=False)
        for box in (axes, scale):
            for spine in box.spines.values():
                spine.set(visible=True, color=MUTED, linewidth=0.6)
        return svg_of(figure, alt)
