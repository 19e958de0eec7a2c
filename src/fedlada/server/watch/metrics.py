"""A run's metrics for Prometheus, served over HTTP while the run runs."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from ...errors import FedladaError, missing_extra, require
from ..record import RoundRecord

if TYPE_CHECKING:
    from prometheus_client import Counter

__all__ = ["Metrics"]

LOOPBACK = "127.0.0.1"
BUCKETS = (0.1, 0.3, 1, 3, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200)
MOST_REASONS = 50
"""Largest number of distinct reasons; clients can invent more, which count as ``other``."""

MOST_SITES = 1000
"""Largest number of sites that the metrics name."""


class Metrics:
    """Serves what happened so far at ``http://address:port/metrics``."""

    def __init__(self, where: str) -> None:
        """Listen on ``where``: a port of 127.0.0.1, or ``address:port`` for another address."""
        try:
            import prometheus_client as prometheus
        except ModuleNotFoundError as error:
            raise missing_extra(error, f"metrics={where}", "fedlada[metrics]") from None
        registry = prometheus.CollectorRegistry()

        def gauge(name: str, text: str) -> prometheus.Gauge:
            return prometheus.Gauge(f"fedlada_{name}", text, registry=registry)

        def counter(name: str, text: str, *labels: str) -> prometheus.Counter:
            return prometheus.Counter(f"fedlada_{name}", text, labels, registry=registry)

        self._round = gauge("round", "The last round that ended")
        self._planned = gauge("planned_rounds", "The rounds that the run has in all")
        self._epsilon: prometheus.Gauge | None = None
        self._gauge = gauge
        self._seconds = prometheus.Histogram(
            "fedlada_round_seconds",
            "How long a round took, without evaluation and checkpoint",
            buckets=BUCKETS,
            registry=registry,
        )
        self._rounds = counter("rounds", "Rounds, by whether they changed the model", "applied")
        self._replies = counter("replies", "Clients asked, by what came back", "outcome", "reason")
        self._missing = prometheus.Gauge(
            "fedlada_missing_rounds",
            "How often in a row a site that was asked has sent nothing",
            ["site"],
            registry=registry,
        )
        self._limited = counter("limited", "Replies with a value cut to its limit", "quantity")
        self._bytes = counter("bytes", "Bytes of vectors sent and received", "direction")
        self._saved_round = gauge("checkpoint_round", "The round of the last checkpoint")
        self._saved_time = gauge("checkpoint_timestamp_seconds", "When it was written")
        self._evaluation = prometheus.Gauge(
            "fedlada_evaluation", "The server's evaluation", ["metric"], registry=registry
        )
        self._reasons: set[str] = set()
        self._absent: set[str] = set()
        address, port = _place(where)
        try:
            self._server, self._thread = prometheus.start_http_server(
                port, address, registry=registry
            )
        except OSError as error:
            raise FedladaError(
                f"metrics is {where!r}, but that port cannot be opened ({error.strerror}); give a"
                " free port, and a different one to each run on this machine"
            ) from error

    def begin(
        self, run: str, *, round: int, rounds: int, resumed: RoundRecord | None = None
    ) -> None:
        self._round.set(round)
        self._planned.set(rounds)

    def record(self, record: RoundRecord, *, saved: bool) -> None:
        self._round.set(record.round)
        self._seconds.observe(record.seconds)
        self._rounds.labels(str(record.applied).lower()).inc()
        self._replies.labels("accepted", "").inc(record.accepted or 0)
        if record.epsilon is not None and not record.seeded:
            if self._epsilon is None:  # in any other run it would say that nothing was told
                self._epsilon = self._gauge("epsilon", "What is spent of the budget of privacy")
            self._epsilon.set(record.epsilon)
        for outcome, counts in (("failed", record.failures), ("rejected", record.rejected)):
            self._add(self._replies, outcome, counts)
        for site in self._absent.difference(record.missing):
            self._missing.labels(site).set(0)
        for site, rounds in record.missing.items():
            if site in self._absent or len(self._absent) < MOST_SITES:
                self._absent.add(site)
                self._missing.labels(site).set(rounds)
        for quantity, count in record.limited.items():
            self._limited.labels(quantity).inc(count)
        self._bytes.labels("down").inc(record.bytes_down)
        self._bytes.labels("up").inc(record.bytes_up)
        if saved:
            self._saved_round.set(record.round)
            self._saved_time.set(time.time())
        for name, value in record.metrics.items():
            self._evaluation.labels(name).set(value)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _add(self, counter: Counter, outcome: str, counts: Mapping[str, int]) -> None:
        for reason, count in counts.items():
            if len(self._reasons) < MOST_REASONS:
                self._reasons.add(reason)
            counter.labels(outcome, reason if reason in self._reasons else "other").inc(count)


def _place(where: str) -> tuple[str, int]:
    match = re.fullmatch(r"(?:(?P<address>[^\s]+):)?(?P<port>\d{1,5})", where)
    require(
        match is not None and 0 < int(match["port"]) < 65536,
        f"metrics is {where!r}; give a port of 127.0.0.1 from 1 to 65535, such as 9464, or an"
        " address and a port, such as 10.0.0.1:9464",
    )
    assert match is not None
    return match["address"] or LOOPBACK, int(match["port"])
