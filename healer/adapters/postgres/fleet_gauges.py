"""What the fleet's map is coloured by: each GPU's newest values, and how each node keeps pace with its peers.

Looked up while somebody looks, for all who look, and not again for some seconds.
"""

import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Generic, TypeVar

import numpy as np
import sqlalchemy as sa
from numpy.typing import NDArray

from healer.adapters.postgres.columns import PostgresColumns
from healer.adapters.postgres.samples import METRICS, STEPS, unpacked
from healer.console.reads import NodeGauges
from healer.model import Column, Part, SlurmSnapshot
from healer.model.samples import Report, StepBatch
from healer.observations.step_grid import RECENT_STEPS, deviation, grid

T = TypeVar("T")

#: What is older is not told any more: senders have a cadence of a minute at most.
GAUGES_LAST, PACES_LAST = timedelta(minutes=2), timedelta(seconds=60)
#: Looked up again after so long.
GAUGES_EVERY_S, PACES_EVERY_S = 5.0, 10.0
#: Reports of a node (several senders), and told batches of a job.
_REPORTS, _BATCHES = 4, 1000
_GPUS = 16

#: From each name by the index: the table holds an hour of all samples.
_NEWEST = sa.text("""
SELECT wanted.name, one.at, one.arrived_at, one.body FROM unnest(CAST(:names AS text[])) AS wanted (name)
CROSS JOIN LATERAL (
    SELECT at, arrived_at, body, id FROM samples
    WHERE cluster = :cluster AND subject = wanted.name AND arrived_at > :since AND kind = :kind
    ORDER BY arrived_at DESC, id DESC LIMIT :most
) AS one ORDER BY one.arrived_at, one.id
""")


class Kept(Generic[T]):
    """One mapping per cluster: looked up by one caller at a time, the same object while it says the same."""

    def __init__(self, every_s: float) -> None:
        self._every_s = every_s
        self._lock = threading.Lock()
        self._known: dict[str, tuple[float, Mapping[str, T]]] = {}

    def get(self, cluster: str, look: Callable[[], Mapping[str, T]]) -> Mapping[str, T]:
        with self._lock:
            at, known = self._known.get(cluster, (-self._every_s, {}))
            if time.monotonic() - at >= self._every_s:
                found = look()
                known = known if found == known else found
                self._known[cluster] = time.monotonic(), known
            return known


def gauges(
    conn: sa.Connection, snapshot: SlurmSnapshot, book: PostgresColumns, now: datetime
) -> dict[str, NodeGauges]:
    names = [node.name for node in snapshot.gpu_nodes]
    rows = _rows(conn, snapshot.cluster, METRICS, names, now - GAUGES_LAST, _REPORTS)
    reports, _ = unpacked(snapshot.cluster, rows)
    wanted = _Wanted(book, {one for report in reports for one in report.columns.tolist()})
    found: dict[str, NDArray[np.float64]] = {}
    for report in reports:
        places, values = wanted.of(report)
        if len(places):
            table = found.setdefault(report.node, np.full(2 * _GPUS, np.nan))
            known = ~np.isnan(values)
            table[places[known]] = values[known]
    return {name: NodeGauges(_told(table[:_GPUS]), _told(table[_GPUS:])) for name, table in found.items()}


class _Wanted:
    """Where in a node's table the values of a report belong; reports of equal columns share the answer."""

    def __init__(self, book: PostgresColumns, ids: set[int]) -> None:
        table = [Column(name, Part(gpu=gpu)) for name in _SIGNALS for gpu in range(_GPUS)]
        place_of = {column: place for place, column in enumerate(table)}
        columns = book.columns(ids)
        self._place = {number: place_of[one] for number, one in columns.items() if one in place_of}
        self._known: dict[int, tuple[NDArray[Any], NDArray[np.int64], NDArray[np.int64]]] = {}

    def of(self, report: Report) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        known = self._known.get(id(report.columns))
        if known is None or known[0] is not report.columns:
            pairs = [
                (at, self._place[one]) for at, one in enumerate(report.columns.tolist()) if one in self._place
            ]
            both = np.array(pairs, np.int64).reshape(-1, 2)
            known = self._known[id(report.columns)] = (report.columns, both[:, 0], both[:, 1])
        return known[2], report.values[known[1]]


_SIGNALS = ("gpu_temp_c", "clock_event_reasons")


def _told(values: NDArray[np.float64]) -> tuple[float | None, ...]:
    """Up to the last one that is known."""
    known = np.flatnonzero(~np.isnan(values))
    count = int(known[-1]) + 1 if len(known) else 0
    return tuple(None if math.isnan(value) else value for value in values[:count].tolist())


def paces(conn: sa.Connection, snapshot: SlurmSnapshot, now: datetime) -> dict[str, float]:
    jobs = {name: job for name, job in snapshot.jobs.items() if job.active}
    rows = _rows(conn, snapshot.cluster, STEPS, list(jobs), now - PACES_LAST, _BATCHES)
    _, batches = unpacked(snapshot.cluster, rows)
    told: dict[str, list[StepBatch]] = {}
    for one in batches:
        told.setdefault(one.job, []).append(one)
    found: dict[str, float] = {}
    for name, its in told.items():
        found |= _paces_of(its, jobs[name].nodes)
    return found


def _paces_of(batches: Sequence[StepBatch], nodes: Sequence[str]) -> dict[str, float]:
    """Whole step times say when a job was slow, not who was: those nodes stay unknown."""
    made = grid(batches, slurm_nodes=nodes)
    if made is None or not made.has_compute:
        return {}
    recent = deviation(made)[:, -RECENT_STEPS:]
    found: dict[str, float] = {}
    for rank, node in enumerate(made.node.tolist()):
        known = recent[rank][np.isfinite(recent[rank])]
        if node >= 0 and len(known):
            name = made.nodes[node]
            found[name] = max(found.get(name, 0.0), 1 + float(np.median(known)))
    return found


def _rows(
    conn: sa.Connection, cluster: str, kind: str, names: list[str], since: datetime, most: int
) -> list[tuple[str, str, datetime, datetime, bytes]]:
    # The partitions are never analysed, so the planner would guess; the index always fits here.
    conn.execute(sa.text("SET LOCAL enable_seqscan = off"))
    told = {"names": names, "cluster": cluster, "since": since, "kind": kind, "most": most}
    return [(kind, row.name, row.at, row.arrived_at, row.body) for row in conn.execute(_NEWEST, told)]
