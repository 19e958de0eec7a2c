"""Conversion of nested tables into one table with dotted keys, and back."""

from __future__ import annotations

from collections.abc import Mapping

from ...errors import ExperimentError

__all__ = ["flatten", "nest"]

# Keys whose table is a single value and is not flattened.
WHOLE = ("algorithm",)
# Keys whose table says something even if it is empty.
EMPTY = ("devices",)


def flatten(tree: Mapping[str, object], prefix: str = "") -> dict[str, object]:
    """Return ``{"train": {"steps": 5}}`` as ``{"train.steps": 5}``."""
    flat: dict[str, object] = {}
    for key, value in tree.items():
        if value == {} and prefix + key in EMPTY:
            flat[prefix + key] = value
        elif isinstance(value, dict) and prefix + key not in WHOLE:
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat


def nest(flat: Mapping[str, object]) -> dict[str, object]:
    """Return ``{"train.steps": 5}`` as ``{"train": {"steps": 5}}``."""
    tree: dict[str, object] = {}
    for dotted, value in flat.items():
        *tables, key = dotted.split(".")
        inner = tree
        for table in tables:
            below = inner.setdefault(table, {})
            if not isinstance(below, dict):
                raise ExperimentError(f"there is no key {dotted!r}: {table} is not a table.")
            inner = below
        inner[key] = value
    return tree
