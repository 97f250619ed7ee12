"""Reads samples of the last hour for pages and checks."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any

import numpy as np
import sqlalchemy as sa

from healer.adapters.postgres.engine import reading, writing
from healer.adapters.postgres.inbox import alerts
from healer.adapters.postgres.samples import METRICS, STEPS, PostgresColumns, Row, unpacked
from healer.adapters.postgres.tables import inbox, samples
from healer.model import DEVICE_MARK, Column, LastContact, Observation
from healer.model.telemetry import Report, StepBatch
from healer.ports.measurements import Devices
from healer.ports.request_errors import Unavailable
from healer.ports.transactions import LedgerAway

#: Rows of one answer, the latest ones: a node that reports every second for an hour; ten minutes of a job
#: with 1,000 ranks.
MOST_ROWS = {METRICS: 3600, STEPS: 20_000}

#: Latest reports of each device in a list: several senders, or several requests of Prometheus, may report the
#: same time.
_OF_A_DEVICE = 8
#: Skips from name to name by the index: few of an hour's samples of all nodes are of devices.
DEVICES_FOUND = sa.text("""
WITH RECURSIVE named (subject, number) AS (
    (SELECT subject, 1 FROM samples
     WHERE cluster = :cluster AND subject > :after ORDER BY subject LIMIT 1)
    UNION ALL
    SELECT (SELECT other.subject FROM samples AS other
            WHERE other.cluster = :cluster AND other.subject > named.subject ORDER BY other.subject LIMIT 1),
           named.number + 1
    FROM named WHERE starts_with(named.subject, :mark) AND named.number <= :limit
)
SELECT named.subject, newest.at, newest.arrived_at, newest.body
FROM named LEFT JOIN LATERAL (
    SELECT at, arrived_at, body, id FROM samples
    WHERE cluster = :cluster AND subject = named.subject AND arrived_at > :since AND kind = :kind
    ORDER BY arrived_at DESC, id DESC LIMIT :most
) AS newest ON true
WHERE starts_with(named.subject, :mark)
ORDER BY named.number, newest.arrived_at, newest.id
""")

#: Latest reports of each node (several senders), and batches of each job, in a list.
_REPORTS, _BATCHES = 4, 1000
_NEWEST = sa.text("""
SELECT wanted.name, newest.at, newest.arrived_at, newest.body
FROM unnest(CAST(:names AS text[])) AS wanted (name)
CROSS JOIN LATERAL (
    SELECT at, arrived_at, body, id FROM samples
    WHERE cluster = :cluster AND subject = wanted.name AND arrived_at > :since AND kind = :kind
    ORDER BY arrived_at DESC, id DESC LIMIT :most
) AS newest ORDER BY newest.arrived_at, newest.id
""")

#: The newest heartbeats of a node by which its clock is judged: the one with the least delay.
_BEATS = 5
#: Alerts of a node that a page reads; a firing alert is repeated once an hour at most.
ALERTS_READ = 2000

_AROUND = sa.text("""
SELECT DISTINCT near.arrived_at, near.id, near.at, near.body
FROM unnest(CAST(:moments AS timestamptz[])) AS wanted (moment)
CROSS JOIN LATERAL (
    (SELECT at, arrived_at, body, id FROM samples
     WHERE cluster = :cluster AND subject = :subject AND arrived_at < moment AND arrived_at >= :since
       AND kind = :kind ORDER BY arrived_at DESC, id DESC LIMIT 1)
    UNION ALL
    (SELECT at, arrived_at, body, id FROM samples
     WHERE cluster = :cluster AND subject = :subject AND arrived_at >= moment
       AND kind = :kind ORDER BY arrived_at, id LIMIT 1)
) AS near ORDER BY near.arrived_at, near.id
""")


class PostgresSignalReads:
    """`healer.ports.measurements.SignalReads`."""

    def __init__(self, engine: sa.Engine, columns: PostgresColumns) -> None:
        self._engine, self._columns = engine, columns

    def node_signals(
        self, cluster: str, node: str, since: datetime
    ) -> tuple[list[Report], dict[int, Column]]:
        found, _ = unpacked(cluster, self._rows(cluster, METRICS, node, since))
        return found, self._columns_of(found)

    def devices(self, cluster: str, since: datetime, *, limit: int, after: str = "") -> Devices:
        values = {
            "cluster": cluster, "after": DEVICE_MARK + after, "mark": DEVICE_MARK, "limit": limit,
            "since": since, "kind": METRICS, "most": _OF_A_DEVICE,
        }  # fmt: skip
        with self._by_index() as conn:
            rows = conn.execute(DEVICES_FOUND, values).all()
        found: dict[str, list[Report]] = {row.subject.removeprefix(DEVICE_MARK): [] for row in rows}
        more = len(found) > limit
        if more:
            found.popitem()
        packed = [(METRICS, row.subject, row.at, row.arrived_at, row.body, "") for row in rows if row.body]
        for report in unpacked(cluster, packed)[0]:
            if (reports := found.get(report.node.removeprefix(DEVICE_MARK))) is not None:
                reports.append(report)
        columns = self._columns_of([report for reports in found.values() for report in reports])
        return Devices(reports=found, columns=columns, more=more)

    def job_steps(self, cluster: str, job: str, since: datetime) -> list[StepBatch]:
        return unpacked(cluster, self._rows(cluster, STEPS, job, since))[1]

    def sampled_steps(self, cluster: str, job: str, moments: Sequence[datetime]) -> list[StepBatch]:
        values = {
            "cluster": cluster, "subject": job, "kind": STEPS, "moments": list(moments),
            "since": min(moments),
        }  # fmt: skip
        with self._by_index() as conn:
            rows = conn.execute(_AROUND, values).all()
        return unpacked(cluster, [(STEPS, job, row.at, row.arrived_at, row.body, "") for row in rows])[1]

    def heard(self, cluster: str, node: str, since: datetime) -> LastContact:
        with reading(self._engine) as conn:
            beat = conn.execute(_newest_of(cluster, node, "heartbeat", since, _BEATS)).one()
            hook = conn.execute(_newest_of(cluster, node, "hook", since, 1)).one()
        # A hook's report may come late, from its spool; heartbeats never do.
        ahead = [float(row.ahead_s) for row in (beat, hook) if row.ahead_s is not None]
        return LastContact(
            heartbeat_at=beat.at, hook_at=hook.at, lines_lost=beat.lost or 0,
            clock_skew_s=max(ahead, default=None),
        )  # fmt: skip

    def clock_skews(self, cluster: str, since: datetime) -> dict[str, float]:
        with reading(self._engine) as conn:
            return clock_skews(conn, cluster, since)

    def alerts(self, cluster: str, node: str, since: datetime) -> list[Observation]:
        with reading(self._engine) as conn:
            return alerts(conn, cluster, since, node=node, limit=ALERTS_READ)

    def fleet_reports(
        self, cluster: str, nodes: Sequence[str], since: datetime
    ) -> tuple[list[Report], dict[int, Column]]:
        found, _ = unpacked(cluster, self._newest(cluster, METRICS, nodes, since, _REPORTS))
        return found, self._columns_of(found)

    def fleet_steps(self, cluster: str, jobs: Sequence[str], since: datetime) -> list[StepBatch]:
        return unpacked(cluster, self._newest(cluster, STEPS, jobs, since, _BATCHES))[1]

    def _columns_of(self, reports: Sequence[Report]) -> dict[int, Column]:
        # Most reports share one array of columns.
        arrays = {id(report.columns): report.columns for report in reports}
        ids = np.unique(np.concatenate(list(arrays.values()))).tolist() if arrays else []
        return self._columns.columns(ids)

    def _newest(self, cluster: str, kind: str, names: Sequence[str], since: datetime, most: int) -> list[Row]:
        values = {"names": list(names), "cluster": cluster, "since": since, "kind": kind, "most": most}
        with self._by_index() as conn:
            rows = conn.execute(_NEWEST, values)
            return [(kind, row.name, row.at, row.arrived_at, row.body, "") for row in rows]

    def _rows(self, cluster: str, kind: str, subject: str, since: datetime) -> list[Row]:
        table: Any = samples.c
        wanted = (
            sa.select(table.at, table.arrived_at, table.body)
            .where(table.cluster == cluster, table.subject == subject)
            .where(table.arrived_at > since, table.kind == kind)
            .order_by(table.arrived_at.desc(), table.id.desc())
            .limit(MOST_ROWS[kind])
        )
        with self._by_index() as conn:
            rows = conn.execute(wanted).all()
        return [(kind, subject, row.at, row.arrived_at, row.body, "") for row in reversed(rows)]

    @contextmanager
    def _by_index(self) -> Iterator[sa.Connection]:
        """The partitions are never analysed, so the planner would guess; the index is always right."""
        with writing(self._engine) as conn:
            conn.execute(sa.text("SET LOCAL enable_seqscan = off"))
            yield conn


class PostgresReadings:
    """`healer.ports.measurements.Readings` of one cluster."""

    def __init__(self, reads: PostgresSignalReads, cluster: str) -> None:
        self._reads, self._cluster = reads, cluster

    def counters(self, subject: str, since: datetime) -> dict[Column, list[tuple[datetime, float]]]:
        try:
            reports, columns = self._reads.node_signals(self._cluster, subject, since)
        except Unavailable as error:
            raise LedgerAway(str(error)) from error
        found: dict[Column, list[tuple[datetime, float]]] = defaultdict(list)
        for report in reports:
            for number, value in zip(report.columns.tolist(), report.values.tolist(), strict=True):
                column = columns.get(number)
                if column is not None and column.signal.endswith("_total") and not np.isnan(value):
                    found[column].append((report.arrived_at, value))
        return dict(found)


def clock_skews(conn: sa.Connection, cluster: str, since: datetime) -> dict[str, float]:
    """Seconds that the clock of each node is ahead, by its heartbeats; without those of nodes that give no
    times. A hook's report may come late, from its spool; heartbeats never do."""
    row, ahead_s = inbox.c, _ahead_s(inbox.c)
    by_node = (
        sa.select(row.node, ahead_s.label("ahead_s"))
        .where(row.cluster == cluster, row.arrived_at > since, row.kind == "heartbeat")
        .group_by(row.node)
    )
    return {node: float(ahead) for node, ahead in conn.execute(by_node) if node and ahead is not None}


def _newest_of(cluster: str, node: str, kind: str, since: datetime, most: int) -> sa.Select:
    """`at`, `lost` and `ahead_s` of the node's newest signals of a kind. They are found from the end of the
    index: a node that reports needs no look at what all others sent since."""
    row = inbox.c
    of_node = row.cluster == cluster, row.node == node, row.kind == kind, row.arrived_at > since
    newest = sa.select(row.arrived_at, row.doc).where(*of_node).order_by(row.arrived_at.desc()).limit(most)
    of = newest.subquery().c
    lost = sa.cast(of.doc["data"]["lost"].astext, sa.BigInteger)
    return sa.select(
        sa.func.max(of.arrived_at).label("at"), sa.func.max(lost).label("lost"), _ahead_s(of).label("ahead_s")
    )


def _ahead_s(row: Any) -> sa.ColumnElement[float]:
    """How far the sender's clock is ahead: the maximum is the signal with the least delay. `row`: the columns
    of the inbox."""
    event_at = sa.cast(row.doc["event_at"].astext, sa.DateTime(timezone=True))
    # Signals without a time are dated by their arrival, and so are those far ahead, with `ahead_s`.
    far_ahead_s = sa.cast(row.doc["data"]["ahead_s"].astext, sa.Float)
    ahead_s = sa.func.coalesce(far_ahead_s, sa.extract("epoch", event_at - row.arrived_at))
    has_time = sa.or_(event_at != row.arrived_at, far_ahead_s.is_not(None))
    return sa.func.max(ahead_s).filter(has_time)
