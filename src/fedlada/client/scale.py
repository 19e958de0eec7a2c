"""How a score is shown in tables and figures, and whether more of it is better."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import require

__all__ = ["BITS", "PERCENT", "Scale"]


@dataclass(frozen=True, kw_only=True)
class Scale:
    """The direction and the unit of a score; the default is a share that is shown in percent.

    Args:
        higher: whether a higher score is better.
        unit: the unit in which the score is shown.
        factor: what a recorded score is multiplied by to get that unit.
        difference: the word for the unit of a difference of two scores.
        most: the largest possible score; None if there is no such number.
        digits: the number of digits after the point in tables.
        tick: the axis of a figure begins at a multiple of this, in the unit.
    """

    higher: bool = True
    unit: str = "%"
    factor: float = 100.0
    difference: str = "points"
    most: float | None = 1.0
    digits: int = 2
    tick: float = 1.0

    @property
    def sign(self) -> int:
        """1 if a higher score is better, else -1: the best score is the largest times this."""
        return 1 if self.higher else -1

    def best(self, scores: Sequence[float]) -> float:
        """Return the best of some scores."""
        return max(scores) if self.higher else min(scores)

    def text(self, score: float) -> str:
        """Return a score in its unit, such as ``80 %`` or ``2.5 bits``."""
        return f"{self.factor * score:.4g} {self.unit}"

    def brief(self, score: float) -> str:
        """Return a score for a line of progress, such as ``51.2%`` or ``2.512``."""
        return f"{score:.1%}" if self.unit == "%" else f"{self.factor * score:.3f}"

    def number(self, score: float) -> str:
        """Return a score with all its digits and without its unit, for a column of a table."""
        return f"{self.factor * score:.{self.digits}f}"

    def heading(self, title: str) -> str:
        """Return what follows a title that contains the score's name: ``, %`` or nothing."""
        return "" if self.unit in title else f", {self.unit}"

    def check_target(self, target: float, key: str) -> None:
        """Raise an error if no score can reach a target, which ``key`` has given."""
        if self.most is None:
            require(target > 0, f"{key} is {target:g}; it must be a score above 0")
            return
        share = target / self.factor
        instead = f", as {share:g} for {target:g} {self.unit}" if target > self.most else ""
        require(
            0 < target <= self.most,
            f"{key} is {target:g}; it must be a score above 0 and at most {self.most:g}"
            + (instead if 0 < share <= self.most else ""),
        )


PERCENT = Scale()
BITS = Scale(
    higher=False, unit="bits", factor=1.0, difference="bits", most=None, digits=3, tick=0.1
)
