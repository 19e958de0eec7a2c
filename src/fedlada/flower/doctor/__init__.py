"""``fedlada doctor``: checks on one machine, before the first round, of what a deployment needs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["Finding", "ok", "problem", "warning"]


@dataclass(frozen=True)
class Finding:
    """One line of the doctor: what was checked, how it stands, and what to do about it."""

    check: str
    state: Literal["ok", "warning", "problem"]
    text: str


def ok(check: str, text: str) -> Finding:
    """Return a finding that needs nothing."""
    return Finding(check, "ok", text)


def warning(check: str, text: str) -> Finding:
    """Return a finding that does not stop a run yet, or not surely."""
    return Finding(check, "warning", text)


def problem(check: str, text: str) -> Finding:
    """Return a finding that stops a run or makes it unsafe; the text ends with what to do."""
    return Finding(check, "problem", text)
