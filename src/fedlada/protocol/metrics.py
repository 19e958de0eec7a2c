"""Metrics as clients and evaluations may return them: numbers by name."""

from __future__ import annotations

from collections.abc import Mapping

from ..errors import FedladaError, require
from .messages import LONGEST_NAME, well_named

__all__ = ["as_numbers"]


def as_numbers(metrics: object, source: str) -> dict[str, float]:
    """Return metrics as floats; ``source`` is who made them, for the sentence of an error."""
    if not isinstance(metrics, Mapping):
        raise FedladaError(
            f"{source} returned {metrics!r:.200}; it must return a dict of numbers by name, such"
            ' as {"loss": 0.5}, or {} for none'
        )
    found = {}
    for name, value in metrics.items():
        require(
            well_named(name),
            f"{source} calls a metric {name!r:.200}; a name must be at"
            f" most {LONGEST_NAME} characters that can be printed, without line breaks",
        )
        try:
            found[name] = float(value)
        except (TypeError, ValueError, RuntimeError) as error:
            raise FedladaError(
                f"{source} returned {value!r:.200} for the metric {name!r}; a metric must be one"
                " number, such as float(loss)"
            ) from error
    return found
