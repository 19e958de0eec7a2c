"""Converts checkpoints and records of earlier versions to the current format.

Format 1 (0.2.0) named an algorithm by the classes of its chain and the plain mean by its import
path, used other names for some values, and used other keys on Flower than in process.  Until
format 2 the manifest held every client's last accepted round, a record did not keep the clients'
metrics apart from those of the server, the guard measured other quantities, and of some values of
a configuration only the type was kept.  Until format 3 the vectors had a SHA-256, which takes twice
the time of BLAKE2 where a processor has no instructions for it.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

from ..algorithms import CORRECTIONS, LOCAL_RULES, SERVER_RULES
from .fingerprint import describe
from .guard import Guard
from .robust import AGGREGATORS
from .sampling import FixedSize

__all__ = ["FORMAT", "as_saved", "upgraded", "upgraded_record"]

FORMAT = 4

EXACT = 3
"""The first format whose configuration tells all values apart."""


def upgraded(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Return the manifest in the current format."""
    found = dict(manifest)
    if found["format"] == 1:
        found = _from_1(found)
    if found["format"] == 2:
        found |= {
            "format": FORMAT,
            "ledger": None,
            "record": upgraded_record(found["record"]),
            "history": {},  # other quantities are measured now: the next round sets new limits
            "config": {**found["config"], "guard": _guard(found["config"]["guard"])},
        }
    return found


def _guard(old: Mapping[str, Any] | None) -> Any:
    """Return the guard's settings with those that were not the defaults."""
    if old is None:
        return None
    now = {f.name: getattr(Guard(), f.name) for f in dataclasses.fields(Guard)}
    return now | {n: v for n, v in old.items() if n not in _GUARD or v != _GUARD[n]}


_GUARD = {"slack": 2.0, "rise": 3.0, "deviations": 6.0, "beyond": 10.0, "memory": 10,
          "calibration": 5}  # fmt: skip
"""The defaults of the guard until format 2."""


def upgraded_record(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return a round's record in which the clients' metrics have a table of their own.

    Clients reported the metrics that have a spread.
    """
    if "client_metrics" in record:
        return dict(record)
    both, spread = record["metrics"], record.get("spread", {})
    return {
        **record,
        "metrics": {name: value for name, value in both.items() if name not in spread},
        "client_metrics": {name: value for name, value in both.items() if name in spread},
    }


def as_saved(now: Any, then: Any, format: int) -> Any:
    """Return what an earlier format kept of a configuration, if it kept ``then``.

    Of a tensor it kept the hash without type and shape, of other values only the type; a run that
    began before can thus be resumed, and its next checkpoint tells more.
    """
    if format >= EXACT:
        return now
    if isinstance(now, dict) and isinstance(then, dict):
        return {key: as_saved(now[key], then.get(key, now[key]), format) for key in now}
    if isinstance(now, list) and isinstance(then, list) and len(now) == len(then):
        return [as_saved(one, other, format) for one, other in zip(now, then, strict=True)]
    if not isinstance(then, str):
        return now
    tensor = isinstance(now, str) and now.startswith("tensor ") and now.endswith(f" {then}")
    module = isinstance(now, dict) and now.get("is") == then
    return then if tensor or module or _TYPE.match(then) else now


_TYPE = re.compile(r"numpy\.|builtins\.(set|frozenset)$|functools\.partial$|torch\.device$")
"""The types of which only the name was kept."""


def _from_1(manifest: dict[str, Any]) -> dict[str, Any]:
    return {
        **manifest,
        "format": 2,
        "last_accepted": manifest["last"],
        "config": _config(manifest["config"]),
    }


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
