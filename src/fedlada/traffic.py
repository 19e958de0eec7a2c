"""``fedlada traffic``: what a client receives and sends in a round, before anything runs."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from .algorithms import ALGORITHMS, Vector, Vectors, algorithm
from .algorithms.vectors import shape_in
from .errors import nearest, require
from .models import MODELS
from .protocol.codecs import PRESETS, Codecs, Way
from .protocol.federated import federated_parameters
from .protocol.wire import send

__all__ = ["Line", "aligned", "lines", "traffic"]


@dataclass(frozen=True)
class Line:
    """One vector of a message: its direction, name, codec and bytes."""

    way: Way
    vector: str
    codec: str
    nbytes: int


@dataclass(frozen=True)
class _Images:
    """Color images of 32 x 32 pixels in ten classes, as CIFAR-10 has them."""

    shape: tuple[int, ...] = (3, 32, 32)
    outputs: int = 10


def lines(name: str, model: str, codec: str) -> tuple[int, list[Line]]:
    """Return the number of parameters, and the vectors of a round with their bytes.

    The vectors are random, so that what zstandard saves is near what it will save.
    """
    chosen, codecs = algorithm(name), Codecs.read(codec)
    require(model in MODELS, f"no model {model!r}; {nearest(model, MODELS)}")
    x = federated_parameters(MODELS[model](_Images())).values()
    generator = torch.Generator().manual_seed(0)
    moments = {name for moment in chosen.moments for name in (moment.up, moment.of)}
    found = []
    ways: dict[Way, Sequence[str]] = {"down": chosen.down, "up": chosen.up}
    for way, names in ways.items():
        for vector in names:
            shapes = [shape_in(vector, t.shape) for t in x]
            noise = Vector(torch.randn(shape, generator=generator) for shape in shapes)
            own = Vectors({vector: noise * noise if vector in moments else noise})
            nbytes = send(own, codecs, way, seed=0).nbytes
            found.append(Line(way, vector, codecs.name(way, vector), nbytes))
    return sum(t.numel() for t in x), found


def traffic(words: Sequence[str]) -> None:
    """Run ``fedlada traffic``: print the vectors of a round and their bytes."""
    parser = argparse.ArgumentParser(
        prog="fedlada traffic",
        description="Print what one client receives and sends in a round, vector by vector.",
        epilog="example: fedlada traffic fedcm --model resnet18 --codec default",
    )
    parser.add_argument("algorithm", help=f"one of {', '.join(ALGORITHMS)}")
    parser.add_argument("--model", default="lenet", help=f"one of {', '.join(MODELS)}")
    parser.add_argument(
        "--codec",
        default="exact",
        help=f"exact, {', '.join(PRESETS)}, or by vector: 'x=sub8 g_a=sub4 | delta=sub5'",
    )
    options = parser.parse_args(words)
    print(table(options.algorithm, options.model, options.codec))


def table(name: str, model: str, codec: str) -> str:
    """Return the table that ``fedlada traffic`` prints."""
    parameters, found = lines(name, model, codec)
    rows = [("", "vector", "codec", "bytes", "per parameter", "of fedavg exact")]
    for way in ("down", "up"):
        own = [line for line in found if line.way == way]
        whole = Line(way, "all", "", sum(line.nbytes for line in own))
        for line in [*own, whole] if len(own) > 1 else own:
            share = line.nbytes / parameters
            cells = (f"{line.nbytes:,}", f"{share:.3f}", f"{share / 4:.3f}")
            rows.append((line.way, line.vector, line.codec, *cells))
    head = f"{name} on {model} ({parameters:,} parameters), codec {codec}, per client and round"
    return "\n".join([head, *aligned(rows, left=3)])


def aligned(rows: Sequence[tuple[str, ...]], *, left: int) -> list[str]:
    """Return the rows of a table as lines; its first columns are flush left, the others right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return [
        "  ".join(
            cell.ljust(width) if i < left else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]
