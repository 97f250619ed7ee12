"""healer's own figures for Prometheus. Few series, none with a node's name.

Counted in this process: `REGISTRY`. Read from the database at each request: `FIGURES`.
"""

import time
from collections import Counter as Tallied
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from healer import __version__
from healer.model import ENDED_RUN_STATES, RunState, Severity, SlurmSnapshot
from healer.ports.signal_stores import Spool

# Else each counter has a second series that says when this process began, which `process_start_time_seconds`
# does.
disable_created_metrics()
REGISTRY = CollectorRegistry()
ProcessCollector(registry=REGISTRY)
PlatformCollector(registry=REGISTRY)


class Described(NamedTuple):
    """A metric as docs/metrics.md shows it. `kind` is Prometheus' type."""

    kind: str
    text: str
    labels: tuple[str, ...] = ()


#: What this process counts, by name.
_COUNTED: dict[str, Described] = {}


def counter(name: str, text: str, *labels: str) -> Counter:
    """`healer_NAME_total`."""
    _COUNTED[f"healer_{name}_total"] = Described("counter", text, labels)
    return Counter(f"healer_{name}", text, labels, registry=REGISTRY)


def _gauge(name: str, text: str, *labels: str) -> Gauge:
    _COUNTED[f"healer_{name}"] = Described("gauge", text, labels)
    return Gauge(f"healer_{name}", text, labels, registry=REGISTRY)


def _histogram(name: str, text: str, buckets: Sequence[float]) -> Histogram:
    _COUNTED[f"healer_{name}"] = Described("histogram", text)
    return Histogram(f"healer_{name}", text, buckets=buckets, registry=REGISTRY)


_gauge("build_info", "Always 1; the label is the version that answers.", "version").labels(__version__).set(1)
DATABASE_UP = _gauge(
    "database_up",
    "1 while the database answers this process. While it is 0, all figures from the database are missing.",
)
SIGNALS = counter("signals", "Signals received, by route and result.", "route", "result")
LOST = counter(
    "signals_lost", "Signals that were sent but not stored, by source and reason.", "source", "reason"
)
COMMIT_S = _histogram(
    "signals_commit_seconds",
    "Time from reading a request to its commit in the database.",
    (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5),
)
QUEUED = _gauge(
    "signals_queued",
    "Signals that wait to be written: number of events, bytes of step times and metrics.",
    "queue",
)
_SPOOLED = _gauge("spool_entries", "Accepted signals that wait on disk while the database is away.")
_SPOOL_BYTES = _gauge("spool_bytes", "Size of the spool on disk.")
_SPOOL_LIMIT_BYTES = _gauge(
    "spool_limit_bytes", "Size limit of the spool; when it is reached, senders get 503."
)
_SPOOL_AGE_S = _gauge("spool_oldest_seconds", "Age of the oldest signal in the spool; 0 if it is empty.")
REQUESTS = counter("http_requests", "Requests by method and status.", "method", "status")
CREDENTIALS_REFUSED = counter(
    "credentials_refused",
    "Rejected credentials: wrong ones, and those not checked because their address sent too many wrong ones.",
    "why",
)
REFUSED_ADDRESSES = _gauge(
    "refused_addresses", "Addresses that are blocked now because they sent too many wrong credentials."
)
REFUSALS = counter("guard_refusals", "Requests that a guard refused, by guard.", "guard")

_ACTIVE = tuple(sorted(state.value for state in RunState if state not in ENDED_RUN_STATES))


class Figure(NamedTuple):
    """`labels`: `cluster` is the first, where it has any. `kept`: the values of the second label that always
    have a series, and 0 where the database counts none; without a second label the cluster always has one."""

    text: str
    labels: tuple[str, ...] = ("cluster",)
    kept: tuple[str, ...] | None = None

    def filled(self, found: Mapping[tuple[str, ...], float], clusters: Sequence[str]) -> dict[Any, float]:
        if self.kept is None:
            return dict(found)
        kept = self.kept if len(self.labels) > 1 else ()
        always = [(cluster, word) for cluster in clusters for word in kept] or [
            (cluster,) for cluster in clusters
        ]
        return dict.fromkeys(always, 0.0) | dict(found)


def _by(*labels: str) -> tuple[str, ...]:
    return ("cluster", *labels)


_CLUSTER = _by()
#: Name without `healer_` -> its description. The values come from `FigureQueries.gauges`, `job_figures` and
#: `scrape_gauges`. A name that ends in `_total` is a counter.
FIGURES: dict[str, Figure] = {
    "nodes": Figure("Slurm's nodes, by state and by who holds them out of service.", _by("state", "held_by")),
    "incidents_open": Figure(
        "Unresolved incidents.", _by("severity"), tuple(severity.value for severity in Severity)
    ),
    "incidents_last_day": Figure("Incidents opened in the last 24 h, by rule.", _by("rule")),
    "detection_delay_last_day_seconds": Figure(
        "Time from first evidence to incident, for incidents opened in the last 24 h.", _by("percentile")
    ),
    "drain_delay_last_day_seconds": Figure(
        "Time from incident to confirmed drain, for incidents opened in the last 24 h.", _by("percentile")
    ),
    "reviews_last_month": Figure(
        "Reviews of incidents opened in the last 30 days, by rule.", _by("rule", "review")
    ),
    "runs_active": Figure("Runs that have not ended.", _by("state"), _ACTIVE),
    "runs_oldest_seconds": Figure("Age of the oldest run that has not ended.", _by("state"), _ACTIVE),
    "runs_last_day": Figure(
        "Runs created in the last 24 h, by playbook and current state.", _by("playbook", "state")
    ),
    "runs_due": Figure("Runs that can continue but that no worker has picked up.", _CLUSTER, ()),
    "runs_due_oldest_seconds": Figure(
        "Longest time that a run which can continue has waited for a worker.", _CLUSTER, ()
    ),
    "slots_used": Figure("Nodes that healer keeps out of service.", _CLUSTER, ()),
    "breaker_open": Figure("1 while the breaker is not closed.", _CLUSTER, ()),
    "pauses": Figure("Pauses in force. An empty cluster label means all clusters.", _CLUSTER, ()),
    "jobs": Figure("Jobs that Slurm shows, by state.", _by("state")),
    "jobs_hit": Figure("Jobs affected by unresolved incidents.", _CLUSTER, ()),
    "jobs_requeued_total": Figure("Jobs that healer requeued, since the database was created.", _CLUSTER, ()),
    "gpu_time_lost_last_day_seconds": Figure(
        "GPU time that jobs lost to incidents opened in the last 24 h, as far as known.", _CLUSTER, ()
    ),
    "gpu_time_last_day_seconds": Figure(
        "GPU time of jobs in the last 24 whole hours, by what it was spent on (docs/jobs.md).", _by("spent")
    ),
    "inbox_waiting": Figure("Stored signals that the detector has not processed yet.", _CLUSTER, ()),
    "inbox_oldest_seconds": Figure(
        "Age of the oldest signal that the detector has not processed yet.", _CLUSTER, ()
    ),
    "part_beat_age_seconds": Figure("Time since the last heartbeat of a part of healer.", _by("part")),
    "slurm_snapshot_age_seconds": Figure("Age of the latest Slurm snapshot."),
    "slurm_read_failing": Figure("1 if the last attempt to read Slurm failed."),
    "audit_unsealed_records": Figure("Audit records that are not sealed yet.", _CLUSTER, ()),
    "audit_unsealed_oldest_seconds": Figure(
        "Age of the oldest audit record that is not sealed yet.", _CLUSTER, ()
    ),
    "audit_witness_age_seconds": Figure(
        "Time since an audit witness last had all checkpoints.", _by("witness")
    ),
    "senders": Figure("Tokens that sent signals in the last 7 days, by route.", _by("route")),
    "senders_heard": Figure("Tokens that sent signals in the last 2 minutes, by route.", _by("route")),
    "messages_waiting": Figure("Messages that wait to be delivered.", _CLUSTER, ()),
    "messages_waiting_oldest_seconds": Figure(
        "Age of the oldest message that waits to be delivered.", _CLUSTER, ()
    ),
    "messages_failed": Figure("Messages that could not be delivered.", _CLUSTER, ()),
    "scrape_targets": Figure("Exporters that healer scrapes, by state.", _by("state")),
    # Another process counts these two; they restart with it.
    "scrapes_total": Figure("Scrapes since the scraper started.", _by("result")),
    "scrape_samples_total": Figure("Samples stored from scrapes since the scraper started."),
    "scrape_report_age_seconds": Figure("Time since the scraper last reported its state."),
    "database_bytes": Figure("Size of the database.", ()),
    "database_disk_free_ratio": Figure(
        "Free share of the disk that holds the database; missing if the database runs on another machine, or "
        "if your own PostgreSQL does not grant pg_read_all_settings to healer_api.",
        (),
    ),
}


def described() -> dict[str, Described]:
    """healer's metrics by name: those of this process, then those of the database."""
    kinds = {name: "counter" if name.endswith("_total") else "gauge" for name in FIGURES}
    stored = {
        f"healer_{name}": Described(kinds[name], figure.text, figure.labels)
        for name, figure in FIGURES.items()
    }
    return _COUNTED | stored


#: Name of a figure -> {label values: number}.
Found = Mapping[str, Mapping[tuple[str, ...], float]]


def job_figures(snapshots: Mapping[str, SlurmSnapshot]) -> Found:
    counted = Tallied(
        (cluster, job.state.lower()) for cluster, seen in snapshots.items() for job in seen.jobs.values()
    )
    return {"jobs": counted}


def spool_figures(spool: Spool) -> None:
    """Has /metrics ask this spool."""

    def age_s() -> float:
        since = spool.state().since
        return 0.0 if since is None else max(0.0, time.time() - since.timestamp())

    _SPOOLED.set_function(lambda: spool.state().entries)
    _SPOOL_BYTES.set_function(lambda: spool.state().size_bytes)
    _SPOOL_LIMIT_BYTES.set_function(lambda: spool.state().limit_bytes)
    _SPOOL_AGE_S.set_function(age_s)


class _Stored(Collector):
    """The figures of one request."""

    def __init__(self, found: Found, clusters: Sequence[str]) -> None:
        named = {labels[0] for each in found.values() for labels in each if labels}
        hidden = named - {"", *clusters}
        self._clusters = sorted(named.intersection(clusters))
        self._found = {
            name: {labels: value for labels, value in each.items() if not hidden.intersection(labels[:1])}
            for name, each in found.items()
        }

    def collect(self) -> Iterator[Metric]:
        for name, figure in FIGURES.items():
            kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
            family = kind(f"healer_{name}", figure.text, labels=figure.labels)
            values = figure.filled(self._found.get(name, {}), self._clusters)
            for labels, value in values.items():
                family.add_metric(labels, value)
            if values:
                yield family


def exposition(found: Found, clusters: Sequence[str]) -> bytes:
    """The text of /metrics, of these clusters."""
    stored = CollectorRegistry()
    stored.register(_Stored(found, clusters))
    return generate_latest(REGISTRY) + generate_latest(stored)
