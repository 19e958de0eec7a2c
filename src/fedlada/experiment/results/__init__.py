"""The results of runs: data frames, comparisons, the best settings."""

from .frames import frame, summary

__all__ = ["frame", "summary"]
