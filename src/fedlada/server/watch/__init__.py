"""Watchers: an operator's view of a run while it runs, as log lines and as metrics."""

from .watcher import LOG_FORMAT, METRICS, Callback, Watcher, watchers, watching

__all__ = ["LOG_FORMAT", "METRICS", "Callback", "Watcher", "watchers", "watching"]
