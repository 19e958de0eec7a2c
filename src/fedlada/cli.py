"""The command ``fedlada``.

``fedlada algorithms`` and ``fedlada --version`` are defined here and ``fedlada traffic`` in
``fedlada.traffic``; they need only torch (traffic of most codecs, zstandard).
``fedlada doctor`` is in ``fedlada.doctor`` and needs what a node has. All other commands are
defined in ``fedlada.experiment.commands``.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from platform import python_version

import torch

from . import __version__
from .algorithms import ALGORITHMS, CATALOGUE, Algorithm
from .errors import FedladaError
from .traffic import aligned, traffic

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the ``fedlada`` command."""
    words = sys.argv[1:] if arguments is None else list(arguments)
    if words[:1] == ["--version"]:
        print(f"fedlada {__version__} (torch {torch.__version__}, Python {python_version()})")
        return
    if words[:1] == ["algorithms"]:
        algorithms(words[1:])
        return
    if words[:1] == ["traffic"]:
        try:
            traffic(words[1:])
        except FedladaError as error:
            sys.exit(f"fedlada: {error}")
        return
    if words[:1] == ["doctor"]:
        from .doctor.command import doctor

        doctor(words[1:])
        return
    try:
        from .experiment.commands import run
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("fedlada"):
            raise
        sys.exit(
            f"fedlada: this needs {error.name}, which is not installed: run"
            ' pip install "fedlada[experiment]". Without it there are only fedlada algorithms and'
            " fedlada doctor."
        )
    run(words)


def algorithms(words: Sequence[str]) -> None:
    """Run ``fedlada algorithms``: print the table of algorithms."""
    parser = argparse.ArgumentParser(
        prog="fedlada algorithms",
        description="List the algorithms: what each is for, is made of and sends per client.",
        epilog="example: fedlada algorithms --parameters 11181642   (a ResNet-18)",
    )
    parser.add_argument(
        "--parameters",
        type=int,
        default=52_202,
        metavar="N",
        help="size of the model, for the bytes (default: LeNet's %(default)s, in float32)",
    )
    print(algorithms_table(parser.parse_args(words).parameters))


def algorithms_table(parameters: int) -> str:
    """Return the table of algorithms by group: what each is for, is made of, and sends."""
    head = ("algorithm", "composition", "vectors down/up/kept", "bytes down", "bytes up")
    rows = [head, *(_row(name, known, parameters) for name, known in ALGORITHMS.items())]
    first, *others = aligned(rows, left=3)
    lines = dict(zip(ALGORITHMS, others, strict=True))
    table = [first, "-" * len(first)]
    for group, known in CATALOGUE.items():
        table += ["", f"{group}:"]
        for name, (_, purpose) in known.items():
            table += [lines[name], f"    {purpose}"]
    return "\n".join(table)


def _row(name: str, algorithm: Algorithm, parameters: int) -> tuple[str, ...]:
    vectors, size = algorithm.traffic, algorithm.traffic.bytes(4 * parameters)
    counts = f"{vectors.down}/{vectors.up}/{vectors.client_state}"
    return name, composition(algorithm), counts, f"{size.down:,}", f"{size.up:,}"


def composition(algorithm: Algorithm) -> str:
    """Return the composition as text, such as ``Amend(AMSGrad) + Averaging``."""
    names = [type(part).__name__ for part in algorithm.part.chain()]
    return f"{'('.join(names)}{')' * (len(names) - 1)} + {type(algorithm.server).__name__}"


if __name__ == "__main__":
    main()
