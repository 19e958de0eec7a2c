"""Weighted means of scalars, summed exactly: as fractions, in any order and any tree."""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from ...protocol.codecs import MalformedReply
from ...protocol.strict import integer, items, table, text

__all__ = ["ExactMeans"]

EXPONENT, DIGITS = 4400, 1200
"""Bounds of an exact number that is read: sums of products of two float64 numbers fit."""


class ExactMeans:
    """The weighted mean of each scalar over the terms that have it, and the sum of weights."""

    def __init__(self) -> None:
        self.weight = Fraction(0)
        """The sum of the weights of all terms."""
        self._sums: dict[str, tuple[Fraction, Fraction]] = {}
        self._not_finite: set[str] = set()

    def fold(self, scalars: Mapping[str, float], weight: float) -> None:
        """Add one term."""
        exact = Fraction(weight)
        for name, value in scalars.items():
            if math.isfinite(value):
                self._add(name, Fraction(value) * exact, exact)
            else:
                self._not_finite.add(name)
        self.weight += exact

    def merge(self, other: ExactMeans) -> None:
        """Add all the terms of other means."""
        for name, (value, weight) in other._sums.items():
            self._add(name, value, weight)
        self._not_finite |= other._not_finite
        self.weight += other.weight

    def means(self) -> dict[str, float]:
        """Return the mean of each scalar; NaN if one of its terms was not finite."""
        means = {name: float(value / weight) for name, (value, weight) in self._sums.items()}
        return means | dict.fromkeys(self._not_finite, math.nan)

    def written(self) -> dict[str, Any]:
        """Return the sums as plain values."""
        return {
            "weight": _written(self.weight),
            "sums": {name: [*map(_written, both)] for name, both in self._sums.items()},
            "not finite": sorted(self._not_finite),
        }

    @classmethod
    def read(cls, header: object) -> ExactMeans:
        """Return what was written; raise only :class:`MalformedReply`."""
        values, means = table(header, {"weight", "sums", "not finite"}), cls()
        means.weight = _read(values["weight"])
        for name, both in table(values["sums"]).items():
            value, weight = (_read(part) for part in items(both, least=2, most=2))
            if not 0 < weight <= means.weight:
                raise MalformedReply("wrong weights of a tally")
            means._sums[name] = value, weight
        means._not_finite = {text(name) for name in items(values["not finite"])}
        try:
            float(means.weight)
            means.means()
        except OverflowError as wrong:
            raise MalformedReply("wrong number in a tally") from wrong
        return means

    def _add(self, name: str, value: Fraction, weight: Fraction) -> None:
        old, total = self._sums.get(name, (Fraction(0), Fraction(0)))
        self._sums[name] = (old + value, total + weight)


def _written(value: Fraction) -> list[str | int]:
    """Return a sum of floating-point numbers as an integer and a negative power of two."""
    return [f"{value.numerator:x}", value.denominator.bit_length() - 1]


def _read(value: object) -> Fraction:
    """Return what was written; its size is known before it is read."""
    digits, exponent = items(value, least=2, most=2)
    if not isinstance(digits, str) or len(digits) > DIGITS:
        raise MalformedReply("wrong number in a tally")
    number = Fraction(_integer(digits), 1 << integer(exponent, most=EXPONENT))
    if _written(number) != value:  # a number has only one form
        raise MalformedReply("wrong number in a tally")
    return number


def _integer(digits: str) -> int:
    try:
        return int(digits, 16)
    except ValueError as wrong:
        raise MalformedReply("wrong number in a tally") from wrong
