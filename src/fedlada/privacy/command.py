"""``fedlada privacy``: noise and epsilon before a run."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from ..errors import check_counts, require
from .account import Sampled

__all__ = ["privacy"]

BUDGETS = (2.0, 8.0)
"""The values of epsilon for which the table has the noise."""


def privacy(parser: argparse.ArgumentParser, words: Sequence[str]) -> None:
    """Say what noise PrivateTraining needs, or what epsilon a noise has.

    Each example of a client is protected. Take the client with the fewest examples: its examples
    have the largest epsilon.
    """
    parser.epilog = "Example: fedlada privacy --examples 5000 --batch-size 250 --steps 10"
    add = parser.add_argument
    add("--examples", type=int, required=True, metavar="N", help="examples of the client")
    add("--batch-size", type=int, default=50, metavar="N", help="mean size of a batch (50)")
    add("--steps", type=int, default=50, metavar="N", help="local steps in a round (50)")
    add("--rounds", type=int, default=100, metavar="N", help="rounds of the client (100)")
    add("--delta", type=float, default=1e-5, help="chance that epsilon does not hold (1e-5)")
    add("--noise", type=float, help="noise in units of the clip; prints its epsilon")
    given = parser.parse_args(words)
    check_counts(given, "examples", "batch_size", "steps", "rounds")
    require(
        given.delta < 1 / given.examples,
        f"delta is {given.delta:g}, and the client has {given.examples} examples: with so large a"
        f" delta a program may publish one of them; choose less than {1 / given.examples:.1g}",
    )
    rate = min(1.0, given.batch_size / given.examples)
    sums = Sampled(rate=rate, count=given.steps * given.rounds)
    print(f"{sums.count} steps, each with {rate:.3g} of the examples, delta {given.delta:g}")
    if given.noise is not None:
        print(f"noise {given.noise:g}: epsilon {sums.epsilon(given.noise, given.delta):.3g}")
        return
    for epsilon in BUDGETS:
        print(f"epsilon {epsilon:g}: noise {sums.noise(epsilon, given.delta):.3g}")
