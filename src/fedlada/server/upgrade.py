"""Converts checkpoints of earlier versions to the current format.

Format 1 (0.2.0) named an algorithm by the classes of its chain and the plain mean by its import
path, used other names for some values, and used other keys on Flower than in process.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..algorithms import CORRECTIONS, LOCAL_RULES, SERVER_RULES
from .fingerprint import describe
from .robust import AGGREGATORS
from .sampling import FixedSize

__all__ = ["FORMAT", "upgraded"]

FORMAT = 2


def upgraded(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Return the manifest in the current format."""
    if manifest["format"] != 1:
        return dict(manifest)
    history = {_RENAMED.get(name, name): seen for name, seen in manifest["history"].items()}
    return {
        **manifest,
        "format": FORMAT,
        "last_accepted": manifest["last"],
        "history": history,
        "config": _config(manifest["config"]),
    }


_RENAMED = {"lr_steps": "lr_sum"}


def _config(old: Mapping[str, Any]) -> dict[str, Any]:
    new = {"target": None, "minimum": 1, "codec": "exact", **old}
    if isinstance(old["algorithm"], dict) and "chain" in old["algorithm"]:
        new["algorithm"] = _algorithm(old["algorithm"])
    if "cohort" in new:
        new["sampling"] = describe(FixedSize(new.pop("cohort")))
    new["target"] = new["target"] or None
    if new["aggregator"] == "fedlada.aggregation.Mean":
        new["aggregator"] = "mean"
    elif new["aggregator"] in AGGREGATORS:
        new["aggregator"] = describe(AGGREGATORS[new["aggregator"]])
    return new


def _algorithm(old: Mapping[str, Any]) -> dict[str, Any]:
    *corrections, local, server = old["chain"]
    settings = {key: value for key, value in old.items() if key != "chain"}
    return {
        "local": _word(local, LOCAL_RULES),
        "corrections": [_word(name, CORRECTIONS) for name in corrections],
        "server": _word(server, SERVER_RULES),
        **settings,
    }


def _word(name: str, table: Mapping[str, type]) -> str:
    return next((word for word, kind in table.items() if kind.__name__ == name), name)
