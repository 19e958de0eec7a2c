"""The ClientApp of an experiment on warm nodes; it imports no torch."""

from __future__ import annotations

from ...flower.warm.app import warm_app

__all__ = ["client"]

client = warm_app(f"{__package__}.flower_app:client")
