"""``fedlada privacy``: noise and epsilon before a run."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence

from ..errors import check_counts, require
from .account import Event, Sampled, composed

__all__ = ["privacy"]

BUDGETS = (2.0, 8.0)
"""The values of epsilon for which the table has the noise."""
LONG = 3.0
"""Noise of this length in clips drowns what a round has learned."""


def privacy(parser: argparse.ArgumentParser, words: Sequence[str]) -> None:
    """Say what noise a private run needs, or what epsilon a noise has.

    With --clients, each client as a whole is protected, by noise on the server (Plan.privacy).
    With --examples, each example of a client is, by noise on the client (PrivateTraining): take
    the client with the fewest examples, which have the largest epsilon.
    """
    parser.epilog = (
        "Examples: fedlada privacy --clients 1000 --rate 0.1 --parameters 50000;"
        " fedlada privacy --examples 5000 --batch-size 250 --steps 10"
    )
    add = parser.add_argument
    add("--clients", type=int, metavar="N", help="clients of the federation")
    add("--rate", type=float, default=0.1, help="chance of a client to be in a round (0.1)")
    add("--parameters", type=int, metavar="N", help="numbers that a client sends")
    add("--examples", type=int, metavar="N", help="examples of a client")
    add("--batch-size", type=int, default=50, metavar="N", help="mean size of a batch (50)")
    add("--steps", type=int, default=50, metavar="N", help="local steps in a round (50)")
    add("--rounds", type=int, default=100, metavar="N", help="rounds (100)")
    add("--delta", type=float, default=1e-5, help="chance that epsilon does not hold (1e-5)")
    add("--epsilon", type=float, help="the budget; prints its noise (2 and 8)")
    add("--noise", type=float, help="noise in units of the clip; prints its epsilon")
    given = parser.parse_args(words)
    check_counts(given, "clients", "parameters", "examples", "batch_size", "steps", "rounds")
    require(
        (given.clients is None) != (given.examples is None),
        "give --clients, to protect whole clients, or --examples, to protect each example of one",
    )
    require(
        given.noise is None or given.epsilon is None,
        "give --noise or --epsilon: one says the other",
    )
    records = given.clients or given.examples
    what = "clients" if given.clients else "examples"
    require(
        given.delta < 1 / records,
        f"delta is {given.delta:g}, and there are {records} {what}: with so large a delta a"
        f" program may publish one of them; choose less than {1 / records:.1g}",
    )
    (_of_clients if given.clients else _of_examples)(given)


def _of_examples(given: argparse.Namespace) -> None:
    rate = min(1.0, given.batch_size / given.examples)
    sums = Sampled(rate=rate, count=given.steps * given.rounds)
    print(f"{sums.count} steps, each with {rate:.3g} of the examples, delta {given.delta:g}")
    if given.noise is not None:
        print(f"noise {given.noise:g}: epsilon {sums.epsilon(given.noise, given.delta):.3g}")
        return
    for epsilon in BUDGETS if given.epsilon is None else (given.epsilon,):
        print(f"epsilon {epsilon:g}: noise {sums.noise(epsilon, given.delta):g}")


def _of_clients(given: argparse.Namespace) -> None:
    sums, expected = Sampled(rate=given.rate, count=given.rounds), given.rate * given.clients
    print(
        f"{given.rounds} rounds, each with about {expected:.4g} of {given.clients:,} clients, delta"
        f" {given.delta:g}"
    )
    if given.noise is not None:
        event = Event(given.rate, given.noise)
        for rounds in sorted({-(-given.rounds // part) for part in (8, 4, 2, 1)}):
            epsilon = composed({event: rounds}, given.delta)
            print(f"noise {given.noise:g}, {rounds} rounds: epsilon {epsilon:.3g}")
        _say_length(given, [given.noise], expected)
        return
    noises = []
    for epsilon in BUDGETS if given.epsilon is None else (given.epsilon,):
        noises.append(sums.noise(epsilon, given.delta))
        print(f"epsilon {epsilon:g}: noise {noises[-1]:g}")
    _say_length(given, noises, expected)


def _say_length(given: argparse.Namespace, noises: Sequence[float], expected: float) -> None:
    """Say whether the noise will drown the model: its length, beside that of a client's news."""
    if given.parameters is None:
        print("--parameters says how long the noise of a round is, and so whether it can work")
        return
    lengths = [noise * math.sqrt(given.parameters) / expected for noise in noises]
    told = " and ".join(f"{length:.2g}" for length in lengths)
    print(f"noise of a round with {given.parameters:,} parameters: {told} clips")
    if max(lengths) > LONG:
        print(
            f"more than {LONG:g} clips drown what a round learns: take more clients a round, send"
            " fewer parameters (adapters, or a frozen model), or run fewer rounds"
        )
