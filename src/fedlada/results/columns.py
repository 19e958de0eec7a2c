"""The names of a record's values in tables and trackers."""

from __future__ import annotations

__all__ = ["CLIENTS", "column"]

CLIENTS = "client_"
"""What precedes the name of a metric that clients reported."""


def column(table: str, name: str) -> str:
    """Return the name of a value; no metric of a client has a name of the server's.

    ``table`` is the record's field and ``name`` the key in it, or empty if the field is a value.
    """
    if table == "metrics":
        return name
    if table == "client_metrics":
        return f"{CLIENTS}{name}"
    return f"{name}_{table}" if name else table
