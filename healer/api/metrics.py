"""healer's own figures for Prometheus. Few series, none with a node's name."""

import time
from collections.abc import Mapping
from typing import Any

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    generate_latest,
)

from healer.ports.signal_stores import Spool

REGISTRY = CollectorRegistry()
ProcessCollector(registry=REGISTRY)
PlatformCollector(registry=REGISTRY)


def _counter(name: str, text: str, *labels: str) -> Counter:
    return Counter(f"healer_{name}", text, labels, registry=REGISTRY)


def _gauge(name: str, text: str, *labels: str) -> Gauge:
    return Gauge(f"healer_{name}", text, labels, registry=REGISTRY)


SIGNALS = _counter("signals", "Signals by route and what became of them.", "route", "result")
LOST = _counter(
    "signals_lost", "Signals that were sent and are not stored, by route and reason.", "source", "reason"
)
COMMIT_S = Histogram(
    "healer_signals_commit_seconds",
    "Time from a read request to its commit.",
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5),
    registry=REGISTRY,
)
QUEUED = _gauge(
    "signals_queued", "What waits to be written: events, and bytes of steps and metrics.", "queue"
)
SPOOLED = _gauge("spool_entries", "Accepted signals on disk while the database is away.")
SPOOL_BYTES = _gauge("spool_bytes", "What they take on disk.")
SPOOL_AGE_S = _gauge("spool_oldest_seconds", "Since when they wait.")
REQUESTS = _counter("http_requests", "Requests by method and status.", "method", "status")
CREDENTIALS_REFUSED = _counter(
    "credentials_refused",
    "Credentials that were refused: wrong, or not looked up as their address had spent its budget.",
    "why",
)
REFUSED_ADDRESSES = _gauge("refused_addresses", "Addresses that have spent their budget now.")
REFUSALS = _counter("guard_refusals", "Requests that a guard refused.", "guard")
#: Key in `FigureQueries.gauges` and `scrape_gauges` -> the gauge. Its labels are the cluster, and one more.
_GAUGES = {
    key: _gauge(name, text, "cluster", *labels)
    for key, name, text, *labels in (
        ("incidents_open", "incidents_open", "Unresolved incidents.", "severity"),
        ("runs", "runs_active", "Runs that have not ended.", "state"),
        ("slots", "slots_used", "Nodes out by healer."),
        ("breaker", "breaker_open", "1 while the breaker is not closed."),
        ("pauses", "pauses", "Pauses in force."),
        ("inbox", "inbox_waiting", "Signals stored and not walked yet."),
        ("inbox_age", "inbox_oldest_seconds", "Age of the oldest of them."),
        ("snapshot_age", "slurm_snapshot_age_seconds", "Age of Slurm's latest picture."),
        ("messages_failed", "messages_failed", "Messages that no sink took."),
        ("scrape_targets", "scrape_targets", "What healer fetches itself.", "state"),
        # These two only grow, and restart with the scraper; another process counts them.
        ("scrapes", "scrapes", "Fetches since the scraper started.", "result"),
        ("scrape_samples", "scrape_samples", "Samples stored since the scraper started."),
        ("scrape_age", "scrape_told_age_seconds", "Since the scraper last told its state."),
    )
}


def spool_figures(spool: Spool) -> None:
    """Has /metrics ask this spool."""

    def age_s() -> float:
        since = spool.state().since
        return 0.0 if since is None else max(0.0, time.time() - since.timestamp())

    SPOOLED.set_function(lambda: spool.state().entries)
    SPOOL_BYTES.set_function(lambda: spool.state().size_bytes)
    SPOOL_AGE_S.set_function(age_s)


def exposition(figures: Mapping[str, Any]) -> bytes:
    """The text of /metrics. `figures`: gauge -> {tuple of label values: number}, see `Reads.figures`."""
    for name, gauge in _GAUGES.items():
        gauge.clear()
        for labels, value in figures.get(name, {}).items():
            gauge.labels(*labels).set(value)
    return generate_latest(REGISTRY)
