"""``fedlada algorithms``: what each algorithm is for, is made of and sends."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from .composition import Algorithm
from .registry import ALGORITHMS, CATALOGUE

__all__ = ["algorithms", "aligned", "listing"]


def algorithms(parser: argparse.ArgumentParser, words: Sequence[str]) -> None:
    """List the algorithms: what each is for, is made of and sends per client."""
    parser.epilog = "Example: fedlada algorithms --parameters 11181642   (a ResNet-18)"
    parser.add_argument(
        "--parameters",
        type=int,
        default=52_202,
        metavar="N",
        help="size of the model, for the bytes (LeNet's %(default)s, in float32)",
    )
    print(listing(parser.parse_args(words).parameters))


def listing(parameters: int) -> str:
    """Return the table of algorithms by group."""
    head = ("algorithm", "composition", "vectors down/up/kept", "bytes down", "bytes up")
    rows = [head, *(_row(name, known, parameters) for name, known in ALGORITHMS.items())]
    first, *others = aligned(rows, left=3)
    lines = dict(zip(ALGORITHMS, others, strict=True))
    table = [first, "-" * len(first)]
    for group, known in CATALOGUE.items():
        table += ["", f"{group}:"]
        for name, named in known.items():
            table += [lines[name], f"    {named.purpose}"]
    return "\n".join(table)


def _row(name: str, algorithm: Algorithm, parameters: int) -> tuple[str, ...]:
    vectors, size = algorithm.traffic, algorithm.traffic.bytes(4 * parameters)
    counts = f"{vectors.down}/{vectors.up}/{vectors.client_state}"
    return name, algorithm.composition, counts, f"{size.down:,}", f"{size.up:,}"


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
