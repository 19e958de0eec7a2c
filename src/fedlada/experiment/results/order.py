"""The order of scores: which is best, and the rank of each."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from math import inf
from typing import TypeVar

from ...client.scale import Scale

__all__ = ["best_first", "ranks", "shown"]

Name = TypeVar("Name", bound=Hashable)


def best_first(scores: Mapping[Name, float | None], scale: Scale) -> list[Name]:
    """Return the names by score, the best first; equals stay in order, and None is last."""
    return sorted(scores, key=lambda name: _loss(scores[name], scale))


def ranks(scores: Mapping[Name, float | None], scale: Scale) -> dict[Name, float]:
    """Return the rank of each name, 1 for the best; equal scores share the mean of their ranks."""
    losses = [_loss(score, scale) for score in scores.values()]
    return {
        name: sum(other < own for other in losses) + (losses.count(own) + 1) / 2
        for name, own in zip(scores, losses, strict=True)
    }


def shown(score: float | None, scale: Scale) -> str:
    """Return a score for a column of a table; None, that of a run that diverged, in words."""
    return "diverged" if score is None else scale.number(score)


def _loss(score: float | None, scale: Scale) -> float:
    return inf if score is None else -scale.sign * score
