"""Weighted means of scalars, summed exactly, in any order and any tree.

A float64 number is a multiple of 2^-1074, and a product of two is one of 2^-2148, so sums of them
are integers in this unit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from ...protocol.codecs import MalformedReply
from ...protocol.strict import integer, items, table, text

__all__ = ["ExactMeans"]

UNIT = 2 * 1074
"""Sums are integers divided by this power of two."""
DIGITS = 1200
"""Bound of an exact number that is read: sums of products of two float64 numbers fit."""


class ExactMeans:
    """The weighted mean of each scalar over the terms that have it, and the sum of weights."""

    def __init__(self) -> None:
        self._weight = 0
        self._sums: dict[str, tuple[int, int]] = {}
        """The sums of values and weights by name."""
        self._not_finite: set[str] = set()

    @property
    def weight(self) -> Fraction:
        """The sum of the weights of all terms."""
        return _fraction(self._weight)

    def fold(self, scalars: Mapping[str, float], weight: float) -> None:
        """Add one term."""
        whole, below = weight.as_integer_ratio()
        exact = _units(whole, below)
        for name, value in scalars.items():
            if math.isfinite(value):
                over, under = value.as_integer_ratio()
                self._add(name, _units(over * whole, under * below), exact)
            else:
                self._not_finite.add(name)
        self._weight += exact

    def merge(self, other: ExactMeans) -> None:
        """Add all the terms of other means."""
        for name, (value, weight) in other._sums.items():
            self._add(name, value, weight)
        self._not_finite |= other._not_finite
        self._weight += other._weight

    def means(self) -> dict[str, float]:
        """Return the mean of each scalar; NaN if one of its terms was not finite."""
        means = {name: value / weight for name, (value, weight) in self._sums.items()}
        return means | dict.fromkeys(self._not_finite, math.nan)

    def written(self) -> dict[str, Any]:
        """Return the sums as plain values."""
        return {
            "weight": _written(self._weight),
            "sums": {name: [*map(_written, both)] for name, both in self._sums.items()},
            "not finite": sorted(self._not_finite),
        }

    @classmethod
    def read(cls, header: object) -> ExactMeans:
        """Return what was written; raise only :class:`MalformedReply`."""
        values, means = table(header, {"weight", "sums", "not finite"}), cls()
        means._weight = _read(values["weight"])
        for name, both in table(values["sums"]).items():
            value, weight = (_read(part) for part in items(both, least=2, most=2))
            if not 0 < weight <= means._weight:
                raise MalformedReply("wrong weights of a tally")
            means._sums[name] = value, weight
        means._not_finite = {text(name) for name in items(values["not finite"])}
        try:
            float(means.weight)
            means.means()
        except OverflowError as wrong:
            raise MalformedReply("wrong number in a tally") from wrong
        return means

    def _add(self, name: str, value: int, weight: int) -> None:
        old, total = self._sums.get(name, (0, 0))
        self._sums[name] = (old + value, total + weight)


def _units(over: int, under: int) -> int:
    """Return a fraction, whose divisor is a power of two, as a number of units."""
    return over << (UNIT + 1 - under.bit_length())


def _fraction(units: int) -> Fraction:
    return Fraction(units, 1 << UNIT)


def _written(units: int) -> list[str | int]:
    """Return a sum as an integer and a negative power of two, without a common divisor."""
    value = _fraction(units)
    return [f"{value.numerator:x}", value.denominator.bit_length() - 1]


def _read(value: object) -> int:
    """Return what was written; its size is known before it is read."""
    digits, exponent = items(value, least=2, most=2)
    if not isinstance(digits, str) or len(digits) > DIGITS:
        raise MalformedReply("wrong number in a tally")
    units = _units(_integer(digits), 1 << integer(exponent, most=UNIT))
    if _written(units) != value:  # a number has only one form
        raise MalformedReply("wrong number in a tally")
    return units


def _integer(digits: str) -> int:
    try:
        return int(digits, 16)
    except ValueError as wrong:
        raise MalformedReply("wrong number in a tally") from wrong
