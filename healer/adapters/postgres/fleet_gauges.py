"""What the fleet's map is coloured by: each GPU's newest values, and how each node keeps pace with its peers.

Looked up while somebody looks, for all who look, and not again for some seconds.
"""

import itertools
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Generic, TypeVar

import numpy as np
import sqlalchemy as sa
import structlog
from numpy.typing import NDArray

from healer.adapters.postgres.columns import PostgresColumns
from healer.adapters.postgres.samples import METRICS, STEPS, unpacked
from healer.model import Column, Part, SlurmSnapshot
from healer.model.samples import Report, StepBatch
from healer.observations.step_grid import deviation, grid, lately
from healer.ports.console_answers import NodeGauges

log = structlog.get_logger()

T = TypeVar("T")

#: As long a page waits; figures that come later are in its next look.
_WAIT_S = 0.1

#: What is older is not told any more: senders have a cadence of a minute at most.
GAUGES_LAST, PACES_LAST = timedelta(minutes=2), timedelta(seconds=60)
#: Looked up again after so long.
GAUGES_EVERY_S, PACES_EVERY_S = 5.0, 15.0
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


#: What was looked up longer ago is not what stands now: then nothing is known.
OLD_S = 60.0


class Kept(Generic[T]):
    """One mapping per cluster, the same object while it says the same. Nobody waits long for it: it is looked
    up in a thread of its own, and until that has come what was known before stands, for `OLD_S`."""

    def __init__(self, every_s: float, *, wait_s: float = _WAIT_S) -> None:
        self._every_s, self._wait_s = every_s, wait_s
        self._lock = threading.Lock()
        self._known: dict[str, tuple[float, Mapping[str, T]]] = {}
        self._looking: dict[str, threading.Thread] = {}

    def get(self, cluster: str, look: Callable[[], Mapping[str, T]]) -> Mapping[str, T]:
        with self._lock:
            at, known = self._known.get(cluster, (-math.inf, {}))
            if time.monotonic() - at < self._every_s:
                return known
            thread = self._looking.get(cluster)
            if thread is None:
                thread = threading.Thread(target=self._renew, args=(cluster, look), daemon=True)
                thread.start()
                self._looking[cluster] = thread
        thread.join(self._wait_s)
        with self._lock:
            at, known = self._known.get(cluster, (-math.inf, {}))
        return known if time.monotonic() - at < OLD_S else {}

    def _renew(self, cluster: str, look: Callable[[], Mapping[str, T]]) -> None:
        try:
            found = look()
        except Exception:
            log.exception("the fleet's figures cannot be looked up", cluster=cluster)
            found = {}  # unknown, rather than what was known once
        with self._lock:
            del self._looking[cluster]
            _, before = self._known.get(cluster, (0.0, {}))
            self._known[cluster] = time.monotonic(), before if found == before else found


def gauges(
    conn: sa.Connection, snapshot: SlurmSnapshot, book: PostgresColumns, now: datetime
) -> dict[str, NodeGauges]:
    names = [node.name for node in snapshot.gpu_nodes]
    rows = _rows(conn, snapshot.cluster, METRICS, names, now - GAUGES_LAST, _REPORTS)
    reports, _ = unpacked(snapshot.cluster, rows)
    row_of = {name: row for row, name in enumerate(dict.fromkeys(report.node for report in reports))}
    table = np.full((len(row_of), 2 * _GPUS), np.nan)
    for columns, its in _by_columns(reports):
        places, at = _wanted(book, columns)
        if len(places):
            for report in its:
                row, values = table[row_of[report.node]], report.values[at]
                known = ~np.isnan(values)
                row[places[known]] = values[known]
    halves = _told(table[:, :_GPUS]), _told(table[:, _GPUS:])
    every = zip(row_of, *halves, strict=True)
    return {name: NodeGauges(hot, held) for name, hot, held in every if hot or held}


def _by_columns(reports: Sequence[Report]) -> Iterator[tuple[NDArray[np.int32], list[Report]]]:
    """Reports of the same columns share them. The order stays among those that follow each other."""
    for _, its in itertools.groupby(reports, key=lambda report: id(report.columns)):
        found = list(its)
        yield found[0].columns, found


def _wanted(book: PostgresColumns, columns: NDArray[np.int32]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Where in a node's row the values belong, and where they stand in the report."""
    known = book.columns(columns.tolist())
    pairs = [
        (_PLACES[known[one]], at) for at, one in enumerate(columns.tolist()) if known.get(one) in _PLACES
    ]
    both = np.array(pairs, np.int64).reshape(-1, 2)
    return both[:, 0], both[:, 1]


_PLACES = {
    Column(name, Part(gpu=gpu)): number * _GPUS + gpu
    for number, name in enumerate(("gpu_temp_c", "clock_event_reasons"))
    for gpu in range(_GPUS)
}


def _told(table: NDArray[np.float64]) -> list[tuple[float | None, ...]]:
    """Each row up to its last known value."""
    known = ~np.isnan(table)
    ends = np.where(known.any(axis=1), _GPUS - known[:, ::-1].argmax(axis=1), 0)
    whole = known.sum(axis=1) == ends
    return [
        tuple(row[:end]) if full else tuple(None if math.isnan(one) else one for one in row[:end])
        for row, end, full in zip(table.tolist(), ends.tolist(), whole.tolist(), strict=True)
    ]


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
    found: dict[str, float] = {}
    for node, above in zip(made.node.tolist(), lately(deviation(made)).tolist(), strict=True):
        if node >= 0 and not math.isnan(above):
            name = made.nodes[node]
            found[name] = max(found.get(name, 0.0), 1 + above)
    return found


def _rows(
    conn: sa.Connection, cluster: str, kind: str, names: list[str], since: datetime, most: int
) -> list[tuple[str, str, datetime, datetime, bytes]]:
    # The partitions are never analysed, so the planner would guess; the index always fits here.
    conn.execute(sa.text("SET LOCAL enable_seqscan = off"))
    told = {"names": names, "cluster": cluster, "since": since, "kind": kind, "most": most}
    return [(kind, row.name, row.at, row.arrived_at, row.body) for row in conn.execute(_NEWEST, told)]
