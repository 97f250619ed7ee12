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

SIGNALS = Counter(
    "healer_signals", "Signals by route and what became of them.", ("route", "result"), registry=REGISTRY
)
LOST = Counter(
    "healer_signals_lost",
    "Signals that were sent and are not stored, by route and reason.",
    ("source", "reason"),
    registry=REGISTRY,
)
COMMIT_S = Histogram(
    "healer_signals_commit_seconds",
    "Time from a read request to its commit.",
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5),
    registry=REGISTRY,
)
QUEUED = Gauge(
    "healer_signals_queued",
    "What waits to be written: events, and bytes of steps and metrics.",
    ("queue",),
    registry=REGISTRY,
)
SPOOLED = Gauge(
    "healer_spool_entries", "Accepted signals on disk while the database is away.", registry=REGISTRY
)
SPOOL_BYTES = Gauge("healer_spool_bytes", "What they take on disk.", registry=REGISTRY)
SPOOL_AGE_S = Gauge("healer_spool_oldest_seconds", "Since when they wait.", registry=REGISTRY)
REQUESTS = Counter(
    "healer_http_requests", "Requests by method and status.", ("method", "status"), registry=REGISTRY
)
REFUSALS = Counter("healer_guard_refusals", "Requests that a guard refused.", ("guard",), registry=REGISTRY)
#: Key in `FigureQueries.gauges` and `scrape_gauges` -> the gauge. Its labels are the cluster, and one more.
_GAUGES = {
    key: Gauge(f"healer_{name}", text, ("cluster", *labels), registry=REGISTRY)
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
